"""Worker kills with SmolLM2: the answers are those of transformers' own generate."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from tests.chaos.cluster import Layout, running_cluster
from tests.chaos.faults.course import Extent, busiest, by_id, eventually, longest_silence_s, losses, until_flowing
from tests.chaos.load import Oracle, Prompt, Shape
from tests.chaos.outcome import Outcome
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.prepare import prepare_smollm2

NUM_TOKENS = 24
PLACES = 36
"""Requests that a worker runs at once; of those that it has as many again wait, on however fast a machine."""
SHAPE = Shape(num_streams=2 * PLACES, max_tokens=NUM_TOKENS)


def _prompts_and_oracle(folder: Path) -> tuple[list[Prompt], Oracle]:
    """Chats, and transformers' answers to them, computed before anything is started."""
    import torch  # for this fault only

    from tests.proof.cases import smollm2_case
    from tests.proof.reference import Reference

    torch.set_num_threads(1)
    module = Reference(folder, "sdpa").module
    prompts = [tuple(prompt) for prompt in smollm2_case(folder).prompts]
    answers = {}
    for prompt in prompts:
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS}
        made = module.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, pad_token_id=0, **options)
        answers[prompt] = tuple(made[0, len(prompt) :].tolist())
    return prompts, lambda prompt, max_tokens: answers[prompt][:max_tokens]


async def kill_with_smollm2(folder: Path, extent: Extent) -> Outcome:
    """One worker is killed while it computes prompts, started again, and the other while it answers."""
    outcome = Outcome("kill -9, SmolLM2", "at the worker, before their first token and streaming")
    model = prepare_smollm2(default_cache_dir(), print)
    prompts, oracle = await asyncio.to_thread(_prompts_and_oracle, model)
    told = {
        "runner": "paged", "model_folder": str(model), "model_name": "smollm2", "cache_dir": str(default_cache_dir()),
        "digest_step_s": 0.0, "digest_token_s": 0.0, "pool": 900, "max_num_sequences": PLACES,
    }  # fmt: skip
    async with running_cluster(folder, Layout(workers=("w0", "w1"), routers=("r0",), worker_told=told)) as cluster:
        load = cluster.load(SHAPE, oracle, prompts=prompts)
        async with load.running():
            await asyncio.sleep(1.5)
            hit_s = time.time()
            cluster.workers["w0"].send(signal.SIGKILL)
            await eventually(lambda: len(losses(cluster, "w0", hit_s)) >= 30, 10.0)
            await asyncio.sleep(0.5)
            lost = losses(cluster, "w0", hit_s)
            num_waiting = sum(not sent for _, _, sent in lost)
            await cluster.restart("w0")
            await until_flowing(load, 2 * PLACES - 4, 120.0)
            victim, again_s = busiest(cluster, load, time.time()), time.time()
            cluster.workers[victim].send(signal.SIGKILL)
            load.stop()
            await eventually(lambda: len(losses(cluster, victim, again_s)) >= 30, 10.0)
            await asyncio.sleep(0.5)
        begun = [name for name, _, sent in losses(cluster, victim, again_s) if sent]
        resumed = [each for each in by_id(load, begun) if each.is_streaming(again_s)]
        outcome.in_phase = min(num_waiting, len(resumed))
        outcome.claim(f"{num_waiting} had no token yet, {len(resumed)} were streaming", True)
        outcome.claim("those that streamed went on and ended well", not any(stream.error for stream in resumed))
        outcome.recovery_s = longest_silence_s(resumed, again_s)
        outcome.recovered_when = "no stream from it had waited longer for a token"
        outcome.count(load)
    return outcome

"""How fast a GPU is used: decoding as a fraction of its memory's bandwidth, prompts, swaps, recorded decoding."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cache_store.kv_layout import KvDtype
from cache_store.transfers import HostStore
from tests.gpu.report import Report
from worker.model_files.folder import ModelFolder
from worker.model_files.layers import group_layers
from worker.step_plan import Draw, Row, SequenceId, StepPlan
from worker.torch_runner import hook
from worker.torch_runner.decode_graphs import DecodeGraphs
from worker.torch_runner.loader import LoadedModel, ModelDtype
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.probe import probe_model
from worker.torch_runner.triton_choice import blocks_maker, graphs_maker, triton_attention

BLOCK_SIZE = 16
GREEDY = Draw(0, 0, 0.0, 1.0, 0, 0, ())
SPARE_BYTES = 8 << 30
"""Left free beside weights and pools."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, on what."""

    hidden: int
    intermediate: int
    heads: tuple[int, int]
    """Query and key heads."""
    head_dim: int
    num_layers: int
    vocab_size: int
    max_len: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    """Of prompts: tokens before, tokens of a chunk."""
    num_words: int
    """Of the arrays that are read to measure bandwidth."""
    num_host_blocks: int
    repeats: int


WHOLE = Sizes(
    hidden=4096,
    intermediate=14336,
    heads=(32, 8),
    head_dim=128,
    num_layers=4,
    vocab_size=128256,
    max_len=40_960,
    batches=(1, 8, 32, 128),
    contexts=(512, 4096, 32768),
    chunks=((0, 2048), (8192, 2048), (30720, 512)),
    num_words=1 << 30,
    num_host_blocks=2048,
    repeats=10,
)
"""Llama 3 8B, but for the number of layers, each of which is the same work."""
QUICK = replace(WHOLE, batches=(1, 32), contexts=(512, 4096), chunks=((0, 2048),), repeats=5)
INTERPRETED = Sizes(32, 32, (2, 1), 16, 1, 300, 128, (1, 2), (20,), ((0, 16), (96, 64)), 1 << 16, 4, 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the memory of the device does at best, in bytes a second."""

    memory: float
    to_host: float
    to_device: float


def large_model(device: torch.device, sizes: Sizes) -> LoadedModel:
    """A Llama with random weights, made on the device."""
    config = AutoConfig.for_model(
        "llama",
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.heads[0],
        num_key_value_heads=sizes.heads[1],
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_len,
        tie_word_embeddings=False,
    )
    hook.register()
    with torch.device(device):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    module = module.to(device).eval().requires_grad_(False)
    layers, latents = probe_model(module, config.vocab_size)
    return LoadedModel(
        module=module,
        folder=ModelFolder(Path(), {}, {}, (), ()),
        name="llama",
        device=device,
        dtype=ModelDtype.BFLOAT16,
        kv_dtype=KvDtype.BFLOAT16,
        layers=layers,
        groups=group_layers(layers),
        latents=latents,
        vocab_size=config.vocab_size,
        max_model_len=sizes.max_len,
        eos_token_ids=(),
        weights_digest=bytes(16),
        attention="",
        tokenizer_digest="",
        fused=None,
    )


def elapsed_s(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Median time on the device of one call; on a CPU that of the call."""
    if device.type != "cuda":
        return wall_s(device, work, repeats)
    times = []
    for _ in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[2:])


def wall_s(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Median time of one call as whoever calls it sees it."""
    times = []
    for _ in range(repeats + (2 if device.type == "cuda" else 0)):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[-repeats:])


def wait(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> int:
    """Bytes that torch has given on a GPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def measure_limits(report: Report, device: torch.device, sizes: Sizes) -> Limits:
    """The bandwidths that all other figures are compared with."""
    words = torch.ones(sizes.num_words, dtype=torch.float32, device=device)
    target = torch.empty_like(words)
    read = words.nbytes / elapsed_s(device, lambda: words.sum(), sizes.repeats)
    copy = 2 * words.nbytes / elapsed_s(device, lambda: target.copy_(words), sizes.repeats)
    report.measured("device memory", f"{read / 1e9:.0f} GB/s read, {copy / 1e9:.0f} copied", read=read, copy=copy)
    host = torch.empty(sizes.num_words // 4, dtype=torch.float32, pin_memory=device.type == "cuda")
    part = words[: host.numel()]
    to_host = host.nbytes / elapsed_s(device, lambda: host.copy_(part, non_blocking=True), sizes.repeats)
    to_device = host.nbytes / elapsed_s(device, lambda: part.copy_(host, non_blocking=True), sizes.repeats)
    report.measured("pinned host memory", f"{to_host / 1e9:.1f} GB/s there, {to_device / 1e9:.1f} back")
    return Limits(max(read, copy), to_host, to_device)


def make_runner(model: LoadedModel, num_blocks: int, num_host_blocks: int, max_rows: int) -> PagedRunner:
    """Over a pool whose slots hold numbers."""
    attention = triton_attention(model)
    graphs = graphs_maker(attention, model.device, max_rows)
    return PagedRunner(
        model,
        num_blocks,
        attention,
        BLOCK_SIZE,
        fill=0.01,
        num_host_blocks=num_host_blocks,
        make_graphs=graphs,
        make_blocks=blocks_maker(attention),
    )


def decode_plan(batch: int, context: int, num_blocks: int) -> StepPlan:
    """One token for each of `batch` rows that have `context` tokens then, in scattered slots of their own."""
    per_row = -(-context // BLOCK_SIZE)
    slots = random.Random(7).sample(range(num_blocks), batch * per_row)
    rows = tuple(
        Row(SequenceId(row), (5,), context - 1, (tuple(slots[row * per_row : (row + 1) * per_row]),), (GREEDY,))
        for row in range(batch)
    )
    return StepPlan(rows, (), (), ())


def check_decode(report: Report, runner: PagedRunner, model: LoadedModel, limits: Limits, sizes: Sizes) -> None:
    """Step times over batch and context."""
    embeddings = model.module.get_input_embeddings().weight.nbytes
    weights = sum(parameter.nbytes for parameter in model.module.parameters()) - embeddings
    per_token = runner.info.geometry.bytes_per_token

    def decode(batch: int, context: int) -> None:
        _decode(report, runner, limits, batch, context, weights + batch * context * per_token, sizes.repeats)

    for context in sizes.contexts:
        for batch in sizes.batches:
            name = f"decode {batch} x {context}"
            if batch * -(-context // BLOCK_SIZE) > runner.num_blocks:
                report.skipped(name, "the pool does not hold that many tokens")
                continue
            report.attempt(name, lambda b=batch, c=context: decode(b, c))


def _decode(
    report: Report, runner: PagedRunner, limits: Limits, batch: int, context: int, num_bytes: int, repeats: int
) -> None:
    device = runner.pools.device
    plan = decode_plan(batch, context, runner.num_blocks)
    whole = wall_s(device, lambda: runner.run(plan), repeats)
    graphs = runner.graphs
    on_device, how = whole, "launched"
    if isinstance(graphs, DecodeGraphs) and graphs.sizes:
        on_device, how = elapsed_s(device, lambda: graphs.replay(batch), repeats), "recorded"
    fraction = num_bytes / on_device / limits.memory
    report.measured(
        f"decode {batch} x {context}",
        f"{on_device * 1e3:7.2f} ms {how} = {fraction:.0%} of the bandwidth; {whole * 1e3:7.2f} ms the whole step",
        device_s=on_device,
        step_s=whole,
        fraction=fraction,
        num_bytes=num_bytes,
    )


def check_graphs(report: Report, runner: PagedRunner, sizes: Sizes) -> None:
    """What recording gains, where steps are short."""
    device, graphs = runner.pools.device, runner.graphs
    if not isinstance(graphs, DecodeGraphs) or not graphs.sizes:
        report.skipped("recorded decoding", "nothing is recorded here")
        return
    for batch in sizes.batches[:2]:
        plan = decode_plan(batch, sizes.contexts[0], runner.num_blocks)
        recorded = wall_s(device, lambda plan=plan: runner.run(plan), sizes.repeats)
        runner.graphs = None
        try:
            launched = wall_s(device, lambda plan=plan: runner.run(plan), sizes.repeats)
        finally:
            runner.graphs = graphs
        gain = launched / recorded
        text = f"{launched * 1e3:.2f} ms launched, {recorded * 1e3:.2f} ms recorded: {gain:.2f} times as fast"
        report.measured(f"recorded decoding, batch {batch}", text, launched_s=launched, recorded_s=recorded)


def check_prefill(report: Report, runner: PagedRunner, model: LoadedModel, sizes: Sizes) -> None:
    """Tokens a second of chunks of a prompt."""
    weights = sum(parameter.numel() for parameter in model.module.parameters())
    embeddings = 2 * model.module.get_input_embeddings().weight.numel()
    for start, count in sizes.chunks:
        length = start + count
        if length > runner.num_blocks * BLOCK_SIZE:
            report.skipped(f"prefill of {count} after {start}", "the pool does not hold that many tokens")
            continue
        table = tuple(range(-(-length // BLOCK_SIZE)))
        plan = StepPlan((Row(SequenceId(1), (5,) * count, start, (table,), (GREEDY,)),), (), (), ())
        seconds = wall_s(runner.pools.device, lambda plan=plan: runner.run(plan), sizes.repeats)
        flops = 2 * (weights - embeddings) * count
        flops += 4 * sizes.heads[0] * sizes.head_dim * sizes.num_layers * sum(range(start + 1, length + 1))
        text = f"{seconds * 1e3:.1f} ms, {count / seconds:.0f} tokens/s, {flops / seconds / 1e12:.0f} TFLOP/s"
        report.measured(f"prefill of {count} after {start}", text, seconds=seconds, flops=flops)


def check_swap(report: Report, runner: PagedRunner, limits: Limits) -> None:
    """Blocks to the host and back, bit for bit, and how fast."""
    copier, pools = runner.copier, runner.pools
    group, device = pools.groups[0], pools.device
    count = min(copier.num_host_blocks, runner.num_blocks // 2)
    group.bytes[:count].random_(0, 256)
    before = group.bytes[:count].clone()
    stores = [HostStore(host_slot=index, slots=(index,)) for index in range(count)]
    stored = wall_s(device, lambda: copier.store(stores), 3)
    group.bytes[:count] = 0
    copier.begin_loads()
    started = time.perf_counter()
    for index in range(count):
        copier.load(index, (index,))
    loaded = time.perf_counter() - started
    wait(device)
    report.expect_true("blocks come back bit for bit", torch.equal(before, group.bytes[:count]))
    num_bytes = count * copier.block_bytes
    group.bytes[:count].zero_()
    for name, seconds, limit in (("to the host", stored, limits.to_host), ("to the device", loaded, limits.to_device)):
        rate = num_bytes / seconds
        report.measured(f"swap {name}", f"{rate / 1e9:.1f} GB/s, {rate / limit:.0%} of one large copy", rate=rate)


def check_memory(report: Report, runner: PagedRunner, before: int) -> None:
    """Bytes of the pools by formula, and what the device has given."""
    expected = runner.num_blocks * runner.info.geometry.bytes_per_block
    report.expect_true("pools have the bytes of the formula", runner.pools.size_bytes == expected, f"{expected} bytes")
    taken = allocated(runner.pools.device) - before
    text = f"{(taken - expected) / (1 << 20):.0f} MiB beside pools of {expected / (1 << 30):.1f} GiB"
    report.measured("recorded decoding and buffers", text, taken=taken, pools=expected)


def check_all(report: Report, device: torch.device, sizes: Sizes) -> None:
    """All figures, over one model and one pool."""
    with report.section("limits"):
        limits = measure_limits(report, device, sizes)
        model = large_model(device, sizes)
    with report.section("memory"):
        before = allocated(device)
        wanted = sizes.batches[-1] * -(-sizes.contexts[-1] // BLOCK_SIZE) + sizes.num_host_blocks
        room = wanted
        if device.type == "cuda":
            torch.cuda.empty_cache()
            free_bytes, _ = torch.cuda.mem_get_info(device)
            room = (free_bytes - SPARE_BYTES) // model.geometry(BLOCK_SIZE).bytes_per_block
        runner = make_runner(model, min(wanted, room), sizes.num_host_blocks, sizes.batches[-1])
        check_memory(report, runner, before)
    with report.section("recording"):
        check_graphs(report, runner, sizes)
    with report.section("decode"):
        check_decode(report, runner, model, limits, sizes)
    with report.section("prefill"):
        check_prefill(report, runner, model, sizes)
    with report.section("swap"):
        check_swap(report, runner, limits)

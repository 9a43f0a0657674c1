"""vLLM as a side of the engine benchmark, in an environment of its own. Imports nothing of ours.

Its engine runs in this process and is stepped by hand, as ours is; prefix caching is on, nothing is detokenised.

    python vllm_engine.py MODEL_FOLDER THREADS BLOCK_SIZE eager|compiled
"""

from __future__ import annotations

import os
import sys
import time

from answering import Answer, Question, answer_all, random_tokens, reserve_output

MAX_MODEL_LEN = 8192


class Vllm:
    def __init__(self, folder: str, block_size: int, is_eager: bool) -> None:
        from vllm import LLM

        llm = LLM(
            model=folder,
            dtype="float32",
            enforce_eager=is_eager,
            block_size=block_size,
            enable_prefix_caching=True,
            max_model_len=MAX_MODEL_LEN,
            disable_log_stats=True,
        )
        self._engine = llm.llm_engine
        self._vocab_size = llm.model_config.get_vocab_size()
        self._next = 0

    def prefill(self, question: Question) -> Answer:
        prompt = self._tokens(question["seed"], question["context"])
        prefix = prompt[: -question["num_new"]]
        cold = self._serve([prompt], 1)
        warm = self._serve([[*prefix, *self._tokens(question["seed"] + 1, question["num_new"])]], 1)
        return {"cold_s": cold["first_s"], "warm_s": warm["first_s"], "cached": [cold["cached"], warm["cached"]]}

    def decode(self, question: Question) -> Answer:
        prompt = self._tokens(question["seed"], question["context"])
        served = self._serve([prompt], question["num_decoded"] + question["num_skipped"] + 1)
        return {"step_s": served["step_s"][1 + question["num_skipped"] :]}

    def batch(self, question: Question) -> Answer:
        shared = self._tokens(question["seed"], question["shared"])
        cold = self._serve(self._prompts(shared, question, 1), question["output"])
        warm = self._serve(self._prompts(shared, question, 2), question["output"])
        return {"cold_s": cold["total_s"], "warm_s": warm["total_s"], "cached": [cold["cached"], warm["cached"]]}

    def _prompts(self, shared: list[int], question: Question, salt: int) -> list[list[int]]:
        seed = question["seed"] + 100 * salt
        return [[*shared, *self._tokens(seed + each, question["own"])] for each in range(question["requests"])]

    def _tokens(self, seed: int, number: int) -> list[int]:
        return random_tokens(seed, number, self._vocab_size)

    def _serve(self, prompts: list[list[int]], num_output: int) -> dict:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True, detokenize=False)
        cached: dict[str, int] = {}
        step_s: list[float] = []
        start = last = time.perf_counter()
        for prompt in prompts:
            self._next += 1
            self._engine.add_request(str(self._next), {"prompt_token_ids": prompt}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            if not outputs:
                continue  # a part of a prompt: its time belongs to the next token
            now = time.perf_counter()
            step_s.append(now - last)
            last = now
            for output in outputs:
                cached[output.request_id] = output.num_cached_tokens or 0
        return {"first_s": step_s[0], "step_s": step_s, "total_s": last - start, "cached": list(cached.values())}


def main() -> None:
    write = reserve_output()
    folder, threads, block_size, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="WARNING",
    )
    side = Vllm(folder, block_size, mode == "eager")
    import torch
    import vllm

    info: Answer = {
        "version": vllm.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "settings": f"{mode}, block {block_size}, prefix caching, engine in the process",
    }
    answer_all(write, info, {"prefill": side.prefill, "decode": side.decode, "batch": side.batch})


if __name__ == "__main__":
    main()

"""transformers with SDPA and its DynamicCache as a side of the engine benchmark. Imports nothing of ours.

Its cache is cut back after a cold prompt, at no cost, and goes on with other tokens: that is its warm start. Sixteen
requests are one batch, to which the shared prefix is copied.

    python transformers_engine.py MODEL_FOLDER THREADS
"""

from __future__ import annotations

import sys
import time

import torch
import transformers
from answering import Answer, Question, answer_all, random_tokens, reserve_output
from transformers import AutoModelForCausalLM, DynamicCache


class Transformers:
    def __init__(self, folder: str) -> None:
        self._module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self._kept: dict[tuple[int, int], DynamicCache] = {}
        """Of the contexts of decode rows."""

    @torch.inference_mode()
    def prefill(self, question: Question) -> Answer:
        num_new = question["num_new"]
        cache = DynamicCache(config=self._module.config)
        start = time.perf_counter()
        self._next([self._tokens(question["seed"], question["context"])], cache)
        middle = time.perf_counter()
        cache.crop(-num_new)
        again = time.perf_counter()
        self._next([self._tokens(question["seed"] + 1, num_new)], cache)
        return {"cold_s": middle - start, "warm_s": time.perf_counter() - again}

    @torch.inference_mode()
    def decode(self, question: Question) -> Answer:
        cache = self._context(question["seed"], question["context"])
        token = [[7]]
        step_s = []
        for _ in range(question["num_skipped"] + question["num_decoded"]):
            start = time.perf_counter()
            token = self._next(token, cache)
            step_s.append(time.perf_counter() - start)
        cache.crop(-len(step_s))
        return {"step_s": step_s[question["num_skipped"] :]}

    @torch.inference_mode()
    def batch(self, question: Question) -> Answer:
        shared = self._tokens(question["seed"], question["shared"])
        start = time.perf_counter()
        cache = DynamicCache(config=self._module.config)
        self._next([shared], cache)
        prefix_s = time.perf_counter() - start
        seed = question["seed"] + 100
        tokens = [self._tokens(seed + each, question["own"]) for each in range(question["requests"])]
        start = time.perf_counter()
        cache.batch_repeat_interleave(question["requests"])
        for _ in range(question["output"]):
            tokens = self._next(tokens, cache)
        rest_s = time.perf_counter() - start
        return {"cold_s": prefix_s + rest_s, "warm_s": rest_s}

    def _context(self, seed: int, length: int) -> DynamicCache:
        kept = self._kept.get((seed, length))
        if kept is None:
            kept = self._kept[seed, length] = DynamicCache(config=self._module.config)
            self._next([self._tokens(seed, length)], kept)
        return kept

    def _next(self, tokens: list[list[int]], cache: DynamicCache) -> list[list[int]]:
        output = self._module(torch.tensor(tokens), past_key_values=cache, use_cache=True, logits_to_keep=1)
        drawn: list[list[int]] = output.logits[:, -1:].argmax(-1).tolist()
        return drawn

    def _tokens(self, seed: int, number: int) -> list[int]:
        return random_tokens(seed, number, self._module.config.vocab_size)


def main() -> None:
    write = reserve_output()
    torch.set_num_threads(int(sys.argv[2]))
    side = Transformers(sys.argv[1])
    info: Answer = {
        "version": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "settings": "sdpa, DynamicCache",
    }
    answer_all(write, info, {"prefill": side.prefill, "decode": side.decode, "batch": side.batch})


if __name__ == "__main__":
    main()

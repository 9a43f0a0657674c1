"""The proof: every cache gives the tokens that `transformers.generate` gives.

`python -m tests.proof [MODEL ...]`; without arguments SmolLM2 and tiny random-weight models of other architectures.
Exit status 0 only where all outputs, hits, distinct tokens, logit differences and byte counts are as they must be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from tests.proof.cases import BLOCK_SIZE, NUM_TOKENS, SMOLLM2, TINY_MODELS, Case, smollm2_case, tiny_case
from tests.proof.compare import MAX_LOGIT_DIFFERENCE, compare
from tests.proof.memory import check_memory
from tests.proof.reference import Reference
from tests.proof.zoo import PROMPTS, Courses
from tests.support.reference import generate
from tests.support.zoo import FAMILIES, zoo_model
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.loader import LoadedModel, load_model
from worker.torch_runner.prepare import prepare_smollm2

THREADS = 2
ZOO = "zoo"
"""All architectures of `tests/support/zoo.py`."""


def prove(case: Case) -> int:
    """Prints one model's lines; returns the number of problems."""
    started = time.monotonic()
    model = load_model(case.folder)
    lines = compare(case, Reference(case.folder, "sdpa" if case.name == SMOLLM2 else "eager"), model, THREADS)
    lengths = [len(prompt) for prompt in case.prompts]
    print(
        f"\n{case.name}: {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, {case.chunk} tokens a step"
    )
    problems = []
    for line in lines:
        print(
            f"  {line.cache:16} {line.num_equal:3} of {line.num_outputs} outputs equal, "
            f"{line.cached_tokens:5} tokens from the cache, largest logit difference {line.logit_difference:.1e}"
        )
        problems += [f"{line.cache}: {problem}" for problem in line.problems]
    memory, wrong = check_memory(case, model)
    for text in memory:
        print(f"  {text}")
    for problem in problems + wrong:
        print(f"  WRONG: {problem}")
    print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return len(problems + wrong)


def prove_zoo(name: str, folder: Path) -> int:
    """Prints one architecture's line; returns the number of problems."""
    model = load_model(zoo_model(name, folder), cache_dir=folder / "cache")
    expected = [generate(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    courses = Courses(model, expected, folder / f"{name}-disk").run()
    largest = max(course.logit_difference for course in courses)
    print(f"  {name:20} {kind_of(model):42} {largest:.1e}  {', '.join(course.name for course in courses)}", flush=True)
    problems = [f"{course.name}: {problem}" for course in courses for problem in course.problems]
    for problem in problems:
        print(f"  WRONG: {problem}")
    return len(problems)


def kind_of(model: LoadedModel) -> str:
    """Its attention in words."""
    first = model.layers[0]
    if first.latent_dim:
        return f"latents of {first.latent_dim}"
    heads = f"{first.num_query_heads} heads of {first.num_kv_heads} keys"
    windows = {layer.window for layer in model.layers}
    reach = "" if windows == {0} else ", sliding" if 0 not in windows else ", sliding and full"
    return heads + reach + (", softcap" if first.softcap else "") + (", sinks" if first.num_sinks else "")


def main() -> int:
    """Runs the cases named on the command line, or all."""
    names = (*TINY_MODELS, SMOLLM2, ZOO)
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("models", nargs="*", help=", ".join(names))
    chosen = parser.parse_args().models or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    torch.set_num_threads(THREADS)
    print(
        f"{NUM_TOKENS} greedy tokens against transformers {transformers.__version__}, torch {torch.__version__}, "
        f"float32, {THREADS} threads, blocks of {BLOCK_SIZE}, pools filled with NaN; "
        f"allowed logit difference {MAX_LOGIT_DIFFERENCE:.0e}"
    )
    num_problems = 0
    with tempfile.TemporaryDirectory(prefix="stemcache-proof-") as folder:
        for name in chosen:
            if name == SMOLLM2:
                case = smollm2_case(prepare_smollm2(default_cache_dir(), print))
            elif name == ZOO:
                print(
                    f"\n{len(FAMILIES)} architectures, {len(PROMPTS)} prompts each, largest logit difference, courses"
                )
                num_problems += sum(prove_zoo(family, Path(folder) / ZOO) for family in FAMILIES)
                continue
            else:
                case = tiny_case(name, Path(folder))
            num_problems += prove(case)
    print("\nPROVEN" if not num_problems else f"\nNOT PROVEN: {num_problems} problems")
    return 1 if num_problems else 0


if __name__ == "__main__":
    sys.exit(main())

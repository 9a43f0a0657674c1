"""Makes the Triton back end for a model. Triton is imported here, when it is wanted, and by nobody else before."""

from __future__ import annotations

from importlib.util import find_spec

from cache_store.errors import PreconditionError
from worker.torch_runner.attention_backend import AttentionBackend
from worker.torch_runner.loader import LoadedModel


def triton_attention(model: LoadedModel) -> AttentionBackend:
    """Raises PreconditionError where Triton is not installed, or the model is on no GPU and nothing interprets."""
    if find_spec("triton") is None:
        raise PreconditionError("the Triton kernels need the package triton: pip install 'stemcache[cuda]'")
    from worker.torch_runner.triton_attention import TritonAttention

    return TritonAttention(model.layers, model.groups, model.device, model.torch_dtype.itemsize)

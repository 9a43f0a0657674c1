"""The structures of `paged_attention.h`, as ctypes hands them to the kernel. Whoever fills one keeps alive what it
points to."""

from __future__ import annotations

import ctypes

_POINTERS = ("tables", "table_starts", "row_starts", "lengths", "token_blocks", "token_offsets")
_SHARES = ("row_shares", "share_starts", "share_rows", "share_lengths")
_COUNTS = ("num_rows", "num_tokens", "block_size", "num_threads", "num_shares", "fixed_order")
_STRIDES = (
    "query_token_stride",
    "query_head_stride",
    "key_token_stride",
    "key_head_stride",
    "value_token_stride",
    "value_head_stride",
    "block_stride",
)
_TENSORS = ("query", "key", "value", "keys", "values", "key_scales", "value_scales", "out", "sinks", "workspace")


class KernelStep(ctypes.Structure):
    """`struct Step`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_SHARES)),
        *((name, ctypes.c_int32) for name in _COUNTS),
    )


class KernelLayer(ctypes.Structure):
    """`struct Layer`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _TENSORS),
        *((name, ctypes.c_int64) for name in _STRIDES),
        *(
            (name, ctypes.c_int32)
            for name in ("num_query_heads", "num_kv_heads", "key_width", "value_width", "window", "element")
        ),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
    )

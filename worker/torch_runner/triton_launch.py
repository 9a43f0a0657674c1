"""Launches the Triton kernels: tensors to pointers, strides and tiles.

The only module that imports Triton beside the kernels themselves. Knows no steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from cache_store.errors import PreconditionError
from worker.torch_runner.pools import LayerPool
from worker.torch_runner.triton_kernels import tile
from worker.torch_runner.triton_kernels.attend import attend
from worker.torch_runner.triton_kernels.latent import attend_latent
from worker.torch_runner.triton_kernels.merge import merge
from worker.torch_runner.triton_kernels.write import write
from worker.torch_runner.triton_tiling import Tiling, padded, power_of_two

_OPERANDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_NATIVE_FLOAT8 = 89
"""Compute capability from which conversions of e4m3 are instructions."""


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """`Work` on the device."""

    items: Tensor
    num_items: Tensor
    """int32 [1]: how many of `items` there are."""
    parts: Tensor
    """int32 [3, tokens]; of no tokens where nothing is split."""
    num_parts: int
    """Room for parts."""
    num_programs: int
    """That share the items, for each key head."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer makes weights of products."""

    scaling: float
    window: int
    softcap: float
    sinks: Tensor | None


class Kernels:
    """The kernels on one device, or interpreted on a CPU. Raises PreconditionError where they cannot run."""

    def __init__(self, device: torch.device) -> None:
        self._is_interpreted = bool(triton.knobs.runtime.interpret)
        if device.type != "cuda" and not self._is_interpreted:
            raise PreconditionError(
                f"the Triton kernels need a CUDA device, not {device}; only tests interpret them, with "
                "TRITON_INTERPRET=1 in the environment"
            )
        self._has_float8 = not self._is_interpreted and _architecture() >= _NATIVE_FLOAT8

    def write(self, key: Tensor, value: Tensor, pool: LayerPool, slots: Tensor, offsets: Tensor) -> None:
        """Stores key and value [kv_heads, tokens, width] of tokens at their `slots` and `offsets` [tokens]."""
        keys, values = _bytes_of_float8(pool.keys), _bytes_of_float8(pool.values)
        key_scales, value_scales = _scales(pool)
        key_strides, value_strides = (key.stride(1), key.stride(0)), (value.stride(1), value.stride(0))
        strides = (*key_strides, *value_strides, *keys.stride()[:3], *values.stride()[:3], *key_scales.stride()[:2])
        num_heads, num_tokens, width = key.shape
        tile_rows = 64 if self._is_interpreted else 16
        write[(-(-num_tokens * num_heads // tile_rows),)](
            key,
            value,
            keys,
            values,
            key_scales,
            value_scales,
            slots,
            offsets,
            num_tokens,
            *strides,
            num_heads=num_heads,
            key_dim=width,
            value_dim=values.shape[3],
            key_pad=padded(width),
            value_pad=padded(values.shape[3]),
            tile_rows=tile_rows,
            coding=_coding(keys),
        )

    def attend(
        self,
        query: Tensor,
        pool: LayerPool,
        tables: Tensor,
        work: DeviceWork,
        tiling: Tiling,
        scores: Scores,
        out: Tensor,
    ) -> None:
        """Results of the tokens of `work`, into their rows of `out` [tokens, query_heads, value_dim]."""
        if work.num_parts == 0:
            self._attend(query, pool, tables, work, tiling, scores, (out, out, out))
            return
        parts = _parts(work, query.shape[0], out.shape[2], query.device)
        self._attend(query, pool, tables, work, tiling, scores, parts)
        merge_parts(parts, work, scores.sinks, out)

    def _attend(
        self,
        query: Tensor,
        pool: LayerPool,
        tables: Tensor,
        work: DeviceWork,
        tiling: Tiling,
        scores: Scores,
        to: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        keys, values = self._readable(pool.keys), self._readable(pool.values)
        key_scales, value_scales = _scales(pool)
        num_kv_heads, key_dim, value_dim = keys.shape[2], keys.shape[3], values.shape[3]
        group = query.shape[0] // num_kv_heads
        strides = (query.stride(1), query.stride(0), *keys.stride()[:3], *values.stride()[:3], *key_scales.stride()[:2])
        attend[(work.num_programs, num_kv_heads, tiling.num_row_tiles(group))](
            query,
            keys,
            values,
            key_scales,
            value_scales,
            to[0] if scores.sinks is None else scores.sinks,
            *to,
            tables,
            work.items,
            work.num_items,
            scores.scaling,
            scores.softcap,
            *strides,
            block_size=keys.shape[1],
            group=group,
            key_dim=key_dim,
            value_dim=value_dim,
            key_pad=padded(key_dim),
            value_pad=padded(value_dim),
            tile_rows=tiling.tile_rows,
            tile_keys=tiling.tile_keys,
            window=scores.window,
            has_softcap=scores.softcap > 0,
            has_sinks=scores.sinks is not None,
            coding=_coding(keys),
            operand=operand_of(query.dtype),
            is_split=work.num_parts > 0,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )

    def attend_latent(
        self,
        query: Tensor,
        pool: LayerPool,
        tables: Tensor,
        work: DeviceWork,
        tiling: Tiling,
        scaling: float,
        out: Tensor,
    ) -> None:
        """Absorbed queries [query_heads, tokens, rank + rope] over latent vectors, into `out` [tokens, heads, rank]."""
        latents = self._readable(pool.keys)
        scales, _ = _scales(pool)
        num_heads, rank = query.shape[0], out.shape[2]
        rope = latents.shape[3] - rank
        parts = _parts(work, num_heads, rank, query.device)
        strides = (query.stride(1), query.stride(0), *latents.stride()[:2], *scales.stride()[:2])
        attend_latent[(work.num_programs, -(-num_heads // tiling.tile_rows))](
            query,
            latents,
            scales,
            *parts,
            tables,
            work.items,
            work.num_items,
            scaling,
            num_heads,
            *strides,
            block_size=latents.shape[1],
            rank=rank,
            rope=rope,
            rank_pad=padded(rank),
            rope_pad=padded(rope),
            tile_rows=tiling.tile_rows,
            tile_keys=tiling.tile_keys,
            coding=_coding(latents),
            operand=operand_of(query.dtype),
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
        merge_parts(parts, work, None, out)

    def output(self, query: Tensor, width: int) -> Tensor:
        """Room for results [tokens, query_heads, width], in a type that the kernels here can round to."""
        dtype = torch.float32 if self._is_interpreted else query.dtype  # the interpreter cuts bfloat16 off
        return query.new_empty((query.shape[1], query.shape[0], width), dtype=dtype)

    def _readable(self, elements: Tensor) -> Tensor:
        return elements if self._has_float8 else _bytes_of_float8(elements)


def _architecture() -> int:
    """Compute capability of the current device, as a number: 90 for 9.0."""
    architecture: int = triton.runtime.driver.active.get_current_target().arch
    return architecture


def operand_of(dtype: torch.dtype) -> object:
    """Type of the operands of products; the interpreter multiplies no bfloat16."""
    return tl.float32 if triton.knobs.runtime.interpret else _OPERANDS[dtype]


def merge_parts(parts: tuple[Tensor, Tensor, Tensor], work: DeviceWork, sinks: Tensor | None, out: Tensor) -> None:
    """Sums up the parts of the first tokens of `out` [tokens, query_heads, width]."""
    _, num_heads, width = out.shape
    tile_heads = min(4, power_of_two(num_heads))
    merge[(work.parts.shape[1], -(-num_heads // tile_heads))](
        *parts,
        *work.parts,
        out if sinks is None else sinks,
        out,
        num_heads=num_heads,
        width=width,
        width_pad=padded(width),
        tile_heads=tile_heads,
        has_sinks=sinks is not None,
        num_warps=2,
    )


def _parts(work: DeviceWork, num_heads: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Room for weighted values, maxima and sums."""
    size = (work.num_parts, num_heads)
    sums, maxima = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))
    return torch.empty((*size, width), dtype=torch.float32, device=device), maxima, sums


def _scales(pool: LayerPool) -> tuple[Tensor, Tensor]:
    """Scales of keys and values; anything in place of those that are not there, and so never read."""
    key_scales = pool.keys if pool.key_scales is None else pool.key_scales
    return key_scales, key_scales if pool.value_scales is None else pool.value_scales


def _bytes_of_float8(elements: Tensor) -> Tensor:
    return elements.view(torch.uint8) if elements.dtype == torch.float8_e4m3fn else elements


def _coding(elements: Tensor) -> int:
    codings = {torch.int8: tile.INT8, torch.float8_e4m3fn: tile.FLOAT8, torch.uint8: tile.FLOAT8_BITS}
    coding: int = codings.get(elements.dtype, tile.PLAIN).value
    return coding

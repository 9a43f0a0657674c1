"""Compares blocks of keys and values that should be equal, by how far they differ.

A difference counts relative to the largest element of the layer's keys, or values, in the two blocks. Computing the
same tokens again, in other chunks or beside other rows, adds up the same products in another order: it differs by
rounding, which grows from layer to layer. So bounds are far above one rounding of the type, and far below what another
token, a shifted position or a flipped bit of an exponent makes. A flipped bit that stays below them is not found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from cache_store.kv_layout import KvDtype
from worker.step_plan import SlotCompare
from worker.torch_runner.pools import GroupPool, KvPools

TOLERANCES: Mapping[KvDtype, float] = MappingProxyType(
    {
        KvDtype.FLOAT32: 1e-3,  # one rounding is 6e-8; as the logits of the load-time probe are allowed
        KvDtype.FLOAT16: 2e-2,  # one rounding is 5e-4
        KvDtype.BFLOAT16: 1e-1,  # one rounding is 4e-3
        KvDtype.INT8: 5e-2,  # one step is 8e-3, and a value at a step's edge goes either way
        KvDtype.FLOAT8: 2.5e-1,  # one step is 1.25e-1 of the element
    }
)
_LEAST = 1e-30


def slot_differences(pools: KvPools, compares: Sequence[SlotCompare]) -> tuple[float, ...]:
    """Per compare, the largest relative difference of a layer; NaN where an element is none."""
    found = [0.0] * len(compares)
    for index, group in enumerate(pools.groups):
        places = [place for place, compare in enumerate(compares) if compare.group == index]
        if places:
            pairs = [(compares[place].expected, compares[place].computed) for place in places]
            for place, difference in zip(places, _of_group(group, pairs), strict=True):
                found[place] = difference
    return tuple(found)


def _of_group(group: GroupPool, pairs: Sequence[tuple[int, int]]) -> list[float]:
    slots = torch.tensor(pairs, device=group.bytes.device).T
    worst = torch.zeros(len(pairs), device=group.bytes.device)
    for elements, scales in ((group.keys, group.key_scales), (group.values, group.value_scales)):
        if elements.shape[-1] == 0:
            continue
        expected, computed = (_values(elements, scales, each) for each in slots)
        size = torch.maximum(expected.abs().amax(-1), computed.abs().amax(-1)).clamp_min(_LEAST)
        worst = torch.maximum(worst, ((expected - computed).abs().amax(-1) / size).amax(-1))
    return [float(each) for each in worst.tolist()]


def _values(elements: Tensor, scales: Tensor | None, slots: Tensor) -> Tensor:
    """[slots, layers, elements of a layer] in float32."""
    values = elements[slots].to(torch.float32)
    if scales is not None:
        values = values * scales[slots].unsqueeze(-1)
    return values.flatten(2)

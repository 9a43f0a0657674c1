"""Latents: carried into their space or expanded, a row reads the same; and no more is expanded than its own tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cache_store.groups import GroupKind
from cache_store.kv_layout import KvDtype, geometry
from worker.model_files.layers import LayerSpec, group_layers
from worker.torch_runner import latent_attention
from worker.torch_runner.dense_attention import dense_attention
from worker.torch_runner.latent_attention import LatentCall, LatentRow, attend_to_latents
from worker.torch_runner.latent_projection import LatentProjection
from worker.torch_runner.loader import LoadedModel

HEADS, RANK, ROTARY, PLAIN, VALUE = 6, 24, 8, 16, 12
ROWS = (LatentRow(0, 1, 40), LatentRow(1, 3, 2), LatentRow(3, 63, 90), LatentRow(63, 64, 7))
"""Decode, a prompt, a long chunk with history, decode."""
NUM_TOKENS = 64


def make_projection() -> LatentProjection:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(HEADS, PLAIN + VALUE, RANK, generator=generator) * 0.3
    return LatentProjection(weight[:, :PLAIN], weight[:, PLAIN:])


def make_latents() -> list[Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(row.length, RANK + ROTARY, generator=generator) for row in ROWS]


def make_call(projection: LatentProjection, latents: list[Tensor], sinks: Tensor | None, window: int) -> LatentCall:
    query = torch.randn(HEADS, NUM_TOKENS, PLAIN + ROTARY, generator=torch.Generator().manual_seed(8))
    new = torch.cat([part[row.length - row.num_new :] for part, row in zip(latents, ROWS, strict=True)])
    key, value = projection.expand(new, slice(0, HEADS))
    return LatentCall(projection, query, key, value, 0.2, window, 5.0 if window else 0.0, sinks)


def written_out(call: LatentCall, latents: list[Tensor]) -> Tensor:
    """Everything expanded, as the model's own code would."""
    parts = []
    for part, row in zip(latents, ROWS, strict=True):
        keys, values = call.projection.expand(part, slice(0, HEADS))
        query = call.query[:, row.low : row.high]
        parts.append(dense_attention(query, keys, values, call.scaling, call.window, call.softcap, call.sinks))
    return torch.cat(parts)


@pytest.mark.parametrize("absorb", ["none", "as it is cheaper", "all"])
@pytest.mark.parametrize(("sinks", "window"), [(False, 0), (True, 9)])
def test_absorbed_and_expanded_rows_read_the_same(
    monkeypatch: pytest.MonkeyPatch, absorb: str, sinks: bool, window: int
) -> None:
    if absorb != "as it is cheaper":
        monkeypatch.setattr(LatentCall, "is_cheaper_absorbed", lambda _call, _row: absorb == "all")
    latents = make_latents()
    call = make_call(make_projection(), latents, torch.linspace(-1, 1, HEADS) if sinks else None, window)
    output = attend_to_latents(call, ROWS, latents.__getitem__)
    assert torch.allclose(output, written_out(call, latents), atol=1e-5, rtol=0)


def test_a_few_new_tokens_are_cheaper_absorbed_and_many_are_not() -> None:
    latents = make_latents()
    call = make_call(make_projection(), latents, None, 0)
    assert [call.is_cheaper_absorbed(row) for row in ROWS] == [True, False, False, True]


def test_heads_are_expanded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    expanded: list[tuple[int, int]] = []
    expand = LatentProjection.expand

    def spy(projection: LatentProjection, latents: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
        keys, values = expand(projection, latents, heads)
        expanded.append((keys.shape[0], keys.shape[1]))
        return keys, values

    latents = make_latents()
    call = make_call(make_projection(), latents, None, 0)
    expected = written_out(call, latents)
    monkeypatch.setattr(LatentProjection, "expand", spy)
    monkeypatch.setattr(latent_attention, "_EXPANDED_ELEMENTS", 2 * 90 * (PLAIN + ROTARY))
    assert torch.allclose(attend_to_latents(call, ROWS, latents.__getitem__), expected, atol=1e-5, rtol=0)
    assert expanded == [(2, 30)] * 3  # only the chunk's 30 older tokens, two of six heads at once


def test_a_loaded_model_caches_one_latent_per_layer_and_token(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("deepseek_v3")
    assert {layer.latent_dim for layer in model.layers} == {RANK + ROTARY}
    assert [(group.kind, group.num_kv_heads, group.key_dim, group.layers) for group in model.groups] == [
        (GroupKind.LATENT, 1, RANK + ROTARY, (0, 1, 2, 3))
    ]
    assert model.geometry(16).bytes_per_token == 4 * (RANK + ROTARY) * 4


def test_no_weights_are_copied_for_it(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("deepseek_v2")
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.module.parameters()}
    for projection in model.latents.values():
        assert projection.keys.untyped_storage().data_ptr() in owned
        assert projection.values.untyped_storage().data_ptr() in owned


def test_deepseek_v2_takes_67_5_kib_per_token() -> None:
    layer = LayerSpec(128, 128, 192, 128, 0.1, 0, 0.0, 0, latent_dim=512 + 64)
    told = geometry(group_layers((layer,) * 60), 16, KvDtype.BFLOAT16)
    assert told.bytes_per_token == 60 * 576 * 2 == 67.5 * 1024
    expanded = geometry(group_layers((replace(layer, latent_dim=0),) * 60), 16, KvDtype.BFLOAT16)
    assert expanded.bytes_per_token == 60 * 128 * (192 + 128) * 2  # 71 times as much

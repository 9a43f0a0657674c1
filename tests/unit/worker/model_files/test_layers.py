"""Groups, their bytes, and the text that names a configuration."""

from __future__ import annotations

from dataclasses import replace

from cache_store.groups import GroupKind
from cache_store.kv_layout import KvDtype, geometry
from worker.model_files.layers import LayerSpec, attention_text, group_layers

FULL = LayerSpec(
    num_query_heads=8, num_kv_heads=2, head_dim=16, value_dim=16, scaling=0.25, window=0, softcap=0.0, num_sinks=0
)
NEAR = replace(FULL, window=32)
FAR = replace(FULL, window=64)


def test_layers_of_one_reach_and_shape_share_a_group_and_full_attention_comes_first() -> None:
    wide = replace(FULL, head_dim=32, value_dim=32)
    groups = group_layers((NEAR, FULL, FAR, NEAR, wide, FULL))
    assert [(group.window, group.key_dim, group.layers) for group in groups] == [
        (0, 16, (1, 5)),
        (0, 32, (4,)),
        (64, 16, (2,)),
        (32, 16, (0, 3)),
    ]


def test_bytes_of_a_block_follow_the_formula() -> None:
    told = geometry(group_layers((NEAR, FULL, NEAR)), block_size=16, dtype=KvDtype.FLOAT32)
    assert [(group.kind, group.window, group.bytes_per_block) for group in told.groups] == [
        (GroupKind.FULL, 0, 2 * 1 * 2 * 16 * 16 * 4),
        (GroupKind.SLIDING, 32, 2 * 2 * 2 * 16 * 16 * 4),
    ]
    assert told.bytes_per_token == 2 * 3 * 2 * 16 * 4


def test_the_text_changes_with_rope_and_with_every_property_of_a_layer() -> None:
    config = {"model_type": "llama", "rope_parameters": {"rope_theta": 1e4}, "max_position_embeddings": 64}
    texts = {
        attention_text(config, (FULL,)),
        attention_text({**config, "rope_parameters": {"rope_theta": 1e5}}, (FULL,)),
        attention_text({**config, "partial_rotary_factor": 0.5}, (FULL,)),
        attention_text(config, (FULL, FULL)),
        attention_text(config, (replace(FULL, scaling=0.5),)),
        attention_text(config, (replace(FULL, softcap=30.0),)),
        attention_text(config, (replace(FULL, num_sinks=8),)),
        attention_text(config, (NEAR,)),
    }
    assert len(texts) == 8
    assert attention_text(dict(reversed(config.items())), (FULL,)) in texts

"""Settings of a worker: a bad value is refused by its name, a secret is never shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from cache_store.errors import InvalidRequestError
from tests.support.worker_host import digest_config
from worker.actor import actor_environment
from worker.build_tiers import num_blocks_of
from worker.config import AttentionKind, KvBytes, KvChoice, NumBlocks, Numerics, RunnerKind

BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "empty id": ("worker_id", {"worker_id": ""}),
    "id with a space": ("worker_id", {"worker_id": "worker 0"}),
    "id in capitals": ("worker_id", {"worker_id": "Worker"}),
    "long id": ("worker_id", {"worker_id": "w" * 65}),
    "empty model name": ("model_name", {"model_name": " "}),
    "another scheme": ("redis_url", {"redis_url": "http://user:secret@host"}),
    "short key": ("cluster_key", {"cluster_key": b"k"}),
    "paged without a folder": ("model_folder", {"runner": RunnerKind.PAGED}),
    "quantised keys of no model": ("kv_dtype", {"kv_dtype": KvChoice.INT8}),
    "digest with a folder": ("model_folder", {"model_folder": Path("/models/x")}),
    "device": ("device", {"device": "tpu"}),
    "port": ("listen_port", {"listen_port": 65_536}),
    "negative port": ("listen_port", {"listen_port": -1}),
    "no host": ("listen_host", {"listen_host": ""}),
    "any address": ("advertised_host", {"listen_host": "0.0.0.0"}),
    "any address of IPv6": ("advertised_host", {"listen_host": "::"}),
    "no blocks": ("pool", {"pool": NumBlocks(0)}),
    "no bytes": ("pool", {"pool": KvBytes(0)}),
    "no host block": ("host_pool", {"host_pool": NumBlocks(0)}),
    "no byte on disk": ("disk_pool", {"host_pool": NumBlocks(1), "disk_pool": KvBytes(0), "disk_folder": Path("/d")}),
    "disk below nothing": ("host_pool", {"disk_pool": NumBlocks(1), "disk_folder": Path("/d")}),
    "disk without a folder": ("disk_folder", {"host_pool": NumBlocks(1), "disk_pool": NumBlocks(1)}),
    "loads in no time": ("digest_load_block_s", {"digest_load_block_s": -1.0}),
    "no tokens": ("token_budget", {"token_budget": 0}),
    "budget below sequences": ("token_budget", {"token_budget": 8, "max_num_sequences": 9}),
    "no sequences": ("max_num_sequences", {"max_num_sequences": 0}),
    "no queue": ("max_waiting", {"max_waiting": 0}),
    "no threads": ("torch_threads", {"torch_threads": 0}),
    "negative time": ("digest_step_s", {"digest_step_s": -1.0}),
    "fixed order of no additions": ("numerics", {"numerics": Numerics.DETERMINISTIC}),
    "fixed order where there is none": (
        "numerics",
        {
            "runner": RunnerKind.PAGED,
            "model_folder": Path("/models/x"),
            "numerics": Numerics.DETERMINISTIC,
            "attention_backend": AttentionKind.GATHER,
        },
    ),
    "no number": ("digest_token_s", {"digest_token_s": float("nan")}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_its_name(name: str) -> None:
    field, changes = BAD[name]
    with pytest.raises(InvalidRequestError) as raised:
        digest_config(**changes)
    assert raised.value.field == field
    assert "secret" not in str(raised.value)


def test_secrets_are_not_in_the_repr() -> None:
    config = digest_config(redis_url="redis://worker:secret@127.0.0.1:6379/0", cluster_key=b"s3cret--" * 4)
    assert "secret" not in repr(config)
    assert "s3cret" not in repr(config)


def test_it_travels_to_another_process_as_it_is() -> None:
    config = digest_config()
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_pool_in_bytes_holds_whole_blocks_and_at_least_one() -> None:
    assert num_blocks_of(KvBytes(1_000), 300) == 3
    assert num_blocks_of(NumBlocks(7), 300) == 7
    with pytest.raises(InvalidRequestError, match="299 bytes hold no block; one block of this model takes 300"):
        num_blocks_of(KvBytes(299), 300)


def test_threads_of_native_code_are_set_on_purpose() -> None:
    assert actor_environment(digest_config(torch_threads=3)) == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def test_a_fingerprint_differs_where_anything_does_and_tells_no_secret() -> None:
    config = digest_config(redis_url="redis://worker:pw@h:1/0")
    assert config.fingerprint() == digest_config(redis_url="redis://worker:pw@h:1/0").fingerprint()
    others = [
        digest_config(redis_url="redis://worker:other@h:1/0"),
        digest_config(redis_url="redis://worker:pw@h:1/0", cluster_key=b"o" * 32),
        digest_config(redis_url="redis://worker:pw@h:1/0", max_waiting=7),
    ]
    assert len({config.fingerprint(), *(each.fingerprint() for each in others)}) == 4
    assert "pw" not in config.fingerprint()

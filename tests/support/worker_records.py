"""Worker records for tests that need no worker."""

from __future__ import annotations

from cache_store.domain import FormatDigest
from cache_store.index import Incarnation
from cache_store.registry import PROTOCOL_VERSION, WorkerId, WorkerLoad, WorkerRecord

IDLE = WorkerLoad(
    running_requests=0,
    waiting_requests=0,
    queued_prefill_tokens=0,
    prefill_tokens_per_s=1_000.0,
    used_blocks=0,
)


def worker_record(
    name: str,
    *,
    model: str = "m",
    load: WorkerLoad = IDLE,
    protocol_version: int = PROTOCOL_VERSION,
    incarnation: str | None = None,
    address: str = "127.0.0.1:1",
    kv_format: bytes = b"f" * 16,
    tokenizer_digest: str = "",
    block_size: int = 16,
    num_blocks: int = 64,
    max_model_len: int = 512,
    max_num_sequences: int = 8,
    vocab_size: int = 1_000,
    draining: bool = False,
) -> WorkerRecord:
    """A record whose incarnation is the worker's name unless told otherwise."""
    return WorkerRecord(
        protocol_version=protocol_version,
        worker_id=WorkerId(name),
        incarnation=Incarnation(incarnation or name),
        address=address,
        model=model,
        kv_format=FormatDigest(kv_format),
        tokenizer_digest=tokenizer_digest,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_bytes_per_token=64,
        max_model_len=max_model_len,
        max_num_sequences=max_num_sequences,
        vocab_size=vocab_size,
        eos_token_ids=(0,),
        draining=draining,
        load=load,
    )


async def not_there(_: WorkerRecord) -> bool:
    """For a router's view: nobody answers."""
    return False

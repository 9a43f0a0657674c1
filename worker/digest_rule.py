"""The token-digest model: what stands in a slot and which token follows, as pure functions.

A slot holds (token, position, context). The context is a running sum over everything before it, read through the
block table when the token is written, as real keys and values depend on what their layer attended to. The next token
is a digest of all records that the groups make readable: a stale, foreign, misplaced or empty slot changes it.
Knows no engine and no pool; `expected_output` computes the same answers from the prompt alone and is the tests' oracle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from cache_store.domain import NO_ADAPTER, AdapterDigest
from cache_store.groups import CacheGeometry, CacheGroup, GroupKind
from cache_store.tokens import PackedTokens
from worker.requests import Finish
from worker.sampling import SamplingParams, uniform
from worker.step_plan import Draw

Records = npt.NDArray[np.uint64]
"""[tokens, RECORD_WIDTH]: token, position, context."""

RECORD_WIDTH = 3
TOKEN, POSITION, CONTEXT = range(RECORD_WIDTH)
POISON = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

_NO_CONTEXT = np.uint64(0)
_MIX_TOKEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_POSITION = np.uint64(0xC2B2_AE3D_27D4_EB4F)
_MIX_ROUNDS = ((np.uint64(30), np.uint64(0xBF58_476D_1CE4_E5B9)), (np.uint64(27), np.uint64(0x94D0_49BB_1331_11EB)))
_MIX_LAST = np.uint64(31)
_DRAW = struct.Struct("<dddI")


class NoTokenLeftError(Exception):
    """Every token of the vocabulary is banned."""


@dataclass(frozen=True, slots=True)
class ExpectedSample:
    """What one sample must be."""

    token_ids: tuple[int, ...]
    finish: Finish


def make_records(token_ids: npt.NDArray[np.uint64], start: int, context: np.uint64 = _NO_CONTEXT) -> Records:
    """Records of `token_ids` at positions from `start` on, after the record whose context is `context`."""
    records = np.empty((len(token_ids), RECORD_WIDTH), dtype=np.uint64)
    records[:, TOKEN] = token_ids
    records[:, POSITION] = np.arange(start, start + len(token_ids), dtype=np.uint64)
    records[:, CONTEXT] = np.cumsum(_mix(records[:, TOKEN], records[:, POSITION]), dtype=np.uint64) + context
    return records


def first_context(adapter: AdapterDigest) -> np.uint64:
    """Context before a sequence's first token: another one for each adapter, so that no record of one is another's."""
    return np.uint64(xxhash.xxh3_64_intdigest(adapter)) if adapter else _NO_CONTEXT


def first_readable(group: CacheGroup, kv_length: int) -> int:
    """First position that the query of the last of `kv_length` tokens reads."""
    return max(0, kv_length - group.window) if group.kind is GroupKind.SLIDING else 0


def next_token(readable: tuple[Records, ...], draw: Draw, vocab_size: int) -> int:
    """Token after the records that each group makes readable. Raises NoTokenLeftError."""
    digest = xxhash.xxh3_64()
    for records in readable:
        digest.update(struct.pack("<Q", len(records)))
        digest.update(np.ascontiguousarray(records).tobytes())
    if draw.temperature > 0:
        number = uniform(draw.seed, draw.sample_index, draw.position)
        digest.update(_DRAW.pack(number, draw.temperature, draw.top_p, draw.top_k))
    return _first_allowed(digest.intdigest() % vocab_size, frozenset(draw.banned), vocab_size)


def expected_output(
    geometry: CacheGeometry,
    vocab_size: int,
    prompt: PackedTokens,
    sampling: SamplingParams,
    num_samples: int,
    adapter: AdapterDigest = NO_ADAPTER,
) -> tuple[ExpectedSample, ...]:
    """All samples of a request, computed without blocks, batches or cache. Raises NoTokenLeftError."""
    return tuple(
        _expected_sample(geometry, vocab_size, prompt, sampling, index, adapter) for index in range(num_samples)
    )


def _expected_sample(
    geometry: CacheGeometry,
    vocab_size: int,
    prompt: PackedTokens,
    sampling: SamplingParams,
    sample_index: int,
    adapter: AdapterDigest,
) -> ExpectedSample:
    records = make_records(np.frombuffer(prompt, dtype="<u4").astype(np.uint64), 0, first_context(adapter))
    output: list[int] = []
    while True:
        draw = Draw(
            sample_index=sample_index,
            position=len(records),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            banned=sampling.stop_token_ids if len(output) < sampling.min_tokens else (),
        )
        readable = tuple(records[first_readable(group, len(records)) :] for group in geometry.groups)
        token = next_token(readable, draw, vocab_size)
        output.append(token)
        if token in sampling.stop_token_ids:
            return ExpectedSample(tuple(output), Finish.STOP)
        if len(output) == sampling.max_tokens:
            return ExpectedSample(tuple(output), Finish.LENGTH)
        new = make_records(np.array([token], dtype=np.uint64), len(records), records[-1, CONTEXT])
        records = np.concatenate((records, new))


def _mix(tokens: Records, positions: Records) -> Records:
    """SplitMix64's finaliser over token and position (Steele, Lea, Flood 2014); wraps around as intended."""
    value = (tokens + np.uint64(1)) * _MIX_TOKEN + positions * _MIX_POSITION
    for shift, factor in _MIX_ROUNDS:
        value = (value ^ (value >> shift)) * factor
    mixed: Records = value ^ (value >> _MIX_LAST)
    return mixed


def _first_allowed(token: int, banned: frozenset[int], vocab_size: int) -> int:
    for offset in range(min(len(banned), vocab_size) + 1):
        candidate = (token + offset) % vocab_size
        if candidate not in banned:
            return candidate
    raise NoTokenLeftError

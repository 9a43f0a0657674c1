"""The synthetic workloads. Pure: numbers and a source of tokens go in, sessions come out, the same for the same seed.

| kind | what is shared |
| --- | --- |
| prefix-repetition | `num_prefixes` prefixes, each as often as the others, in random order |
| shared-prefix | system prompts, some far more popular than others: by Zipf's law with exponent `zipf` |
| conversation | a system prompt; each turn repeats all before it, answers included |
| documents | long documents, each asked `turns` different questions, in random order over all of them |
| tier-pressure | prefixes that together take `pool_factor` times the KV pool, in turn: the oldest comes next |
| random | nothing |

Traces are `services/loadtest/trace_sessions.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np

from cache_store.errors import InvalidRequestError
from cache_store.tokens import PackedTokens
from services.loadtest.sessions import Session, Turn, Workload
from services.loadtest.token_source import TokenSource

MAX_PREFIXES = 1 << 20
MAX_PREFIX_TOKENS = 1 << 28
"""Of all prefixes together: they are drawn before anything is sent, and take four bytes each."""
MAX_TURNS = 4_096
MAX_ROUND = 1 << 24
"""Questions about all documents, which are put in order at once."""


class WorkloadKind(StrEnum):
    """Kinds by the names that users type."""

    PREFIX_REPETITION = "prefix-repetition"
    SHARED_PREFIX = "shared-prefix"
    CONVERSATION = "conversation"
    DOCUMENTS = "documents"
    TIER_PRESSURE = "tier-pressure"
    RANDOM = "random"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Parameters; each kind reads those that it has."""

    kind: WorkloadKind
    num_prefixes: int = 10
    prefix_len: int = 256
    suffix_len: int = 256
    output_len: int = 128
    range_ratio: float = 0.0
    """Suffixes and answers have lengths within that part around theirs."""
    zipf: float = 1.1
    turns: int = 4
    think_s: float = 0.0
    pool_factor: float = 2.0
    trace: str = ""
    trace_block_tokens: int = 0
    """Tokens that a block of the trace becomes; 0: as many as it has."""
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_prefixes", "suffix_len", "output_len", "turns"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(_flag(name), f"{_flag(name)} is {getattr(self, name)}; it is at least 1")
        if self.turns > MAX_TURNS:
            raise InvalidRequestError("turns", f"turns is {self.turns}; it is at most {MAX_TURNS:,}")
        if self.prefix_len < 0 or self.trace_block_tokens < 0 or self.think_s < 0:
            raise InvalidRequestError("prefix-len", "lengths and times are 0 or more")
        if not 0 <= self.range_ratio < 1:
            raise InvalidRequestError("range-ratio", f"range-ratio is {self.range_ratio:g}; it is 0 or more, below 1")
        if not (self.pool_factor > 0 and self.time_scale > 0 and self.zipf > 0):
            raise InvalidRequestError("pool-factor", "pool-factor, time-scale and zipf are above 0")

    def parameters(self) -> dict[str, str | int | float | bool | None]:
        """Those that this kind reads."""
        read = _READ[self.kind]
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name in read}


_LENGTHS = {"suffix_len", "output_len", "range_ratio"}
_PREFIXES = _LENGTHS | {"num_prefixes", "prefix_len"}
_READ: dict[WorkloadKind, set[str]] = {
    WorkloadKind.PREFIX_REPETITION: _PREFIXES,
    WorkloadKind.SHARED_PREFIX: _PREFIXES | {"zipf"},
    WorkloadKind.CONVERSATION: _PREFIXES | {"turns", "think_s"},
    WorkloadKind.DOCUMENTS: _PREFIXES | {"turns"},
    WorkloadKind.TIER_PRESSURE: _LENGTHS | {"prefix_len", "pool_factor"},
    WorkloadKind.RANDOM: _LENGTHS,
    WorkloadKind.TRACE: {"trace", "trace_block_tokens", "time_scale"},
}

USUAL: dict[WorkloadKind, WorkloadSpec] = {
    WorkloadKind.PREFIX_REPETITION: WorkloadSpec(WorkloadKind.PREFIX_REPETITION),
    WorkloadKind.SHARED_PREFIX: WorkloadSpec(WorkloadKind.SHARED_PREFIX, prefix_len=512, suffix_len=64, output_len=32),
    WorkloadKind.CONVERSATION: WorkloadSpec(
        WorkloadKind.CONVERSATION, num_prefixes=1, prefix_len=256, suffix_len=64, output_len=64
    ),
    WorkloadKind.DOCUMENTS: WorkloadSpec(
        WorkloadKind.DOCUMENTS, num_prefixes=8, prefix_len=4_096, suffix_len=32, output_len=32, turns=8
    ),
    WorkloadKind.TIER_PRESSURE: WorkloadSpec(WorkloadKind.TIER_PRESSURE, prefix_len=1_024, suffix_len=32, output_len=8),
    WorkloadKind.RANDOM: WorkloadSpec(WorkloadKind.RANDOM, prefix_len=0, suffix_len=512, output_len=32),
    WorkloadKind.TRACE: WorkloadSpec(WorkloadKind.TRACE),
}
"""What is taken where nothing else is said; lengths of prefix-repetition are those of `vllm bench serve`."""


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """What the served model and its caches take."""

    max_model_len: int
    pool_tokens: int
    """Of the KV pools of all workers together; 0 where it is not known."""


def build(spec: WorkloadSpec, tokens: TokenSource, room: ModelRoom, rng: np.random.Generator) -> Workload:
    """The workload. Raises InvalidRequestError where its requests do not fit the model."""
    maker = _Maker(spec, tokens, rng)
    _require_fit(spec, room)
    makers: dict[WorkloadKind, Callable[[], Workload]] = {
        WorkloadKind.PREFIX_REPETITION: maker.prefix_repetition,
        WorkloadKind.SHARED_PREFIX: maker.shared_prefix,
        WorkloadKind.CONVERSATION: maker.conversation,
        WorkloadKind.DOCUMENTS: maker.documents,
        WorkloadKind.TIER_PRESSURE: lambda: maker.tier_pressure(room.pool_tokens),
        WorkloadKind.RANDOM: maker.random,
    }
    return makers[spec.kind]()


def longest(spec: WorkloadSpec) -> int:
    """Most tokens of one request, prompt and answer."""
    grown = 1 + spec.range_ratio
    each = int(spec.suffix_len * grown) + int(spec.output_len * grown)
    prefix = 0 if spec.kind is WorkloadKind.RANDOM else spec.prefix_len
    return prefix + each * (spec.turns if spec.kind is WorkloadKind.CONVERSATION else 1)


def _require_fit(spec: WorkloadSpec, room: ModelRoom) -> None:
    if longest(spec) > room.max_model_len:
        turns = f" in {spec.turns} turns" if spec.kind is WorkloadKind.CONVERSATION else ""
        raise InvalidRequestError(
            "prefix-len",
            f"requests of {spec.kind} take up to {longest(spec):,} tokens (prefix {spec.prefix_len}, suffix "
            f"{spec.suffix_len}, output {spec.output_len}{turns}), and the model takes {room.max_model_len:,}; "
            "lower --prefix-len, --suffix-len, --output-len" + (" or --turns" if turns else ""),
        )


class _Maker:
    """Draws one workload's sessions."""

    def __init__(self, spec: WorkloadSpec, tokens: TokenSource, rng: np.random.Generator) -> None:
        self._spec = spec
        self._tokens = tokens
        self._rng = rng

    def prefix_repetition(self) -> Workload:
        prefixes = self._prefixes(self._spec.num_prefixes)
        return self._over(prefixes, self._rounds(len(prefixes), 1))

    def shared_prefix(self) -> Workload:
        prefixes = self._prefixes(self._spec.num_prefixes)
        weights = np.arange(1, len(prefixes) + 1, dtype=float) ** -self._spec.zipf
        return self._over(prefixes, self._popular(weights / weights.sum()))

    def documents(self) -> Workload:
        number, turns = self._spec.num_prefixes, self._spec.turns
        if number * turns > MAX_ROUND:
            raise InvalidRequestError("turns", f"{number:,} documents with {turns:,} questions each are too many")
        return self._over(self._prefixes(number), self._rounds(number, turns))

    def tier_pressure(self, pool_tokens: int) -> Workload:
        if not pool_tokens:
            raise InvalidRequestError(
                "pool-tokens",
                "tier-pressure is sized by the KV pool, which the operator's API tells; give --admin-address and "
                "--admin-token-file, or --pool-tokens",
            )
        number = -(-int(self._spec.pool_factor * pool_tokens) // max(1, self._spec.prefix_len))
        prefixes = self._prefixes(number)
        return self._over(prefixes, itertools.cycle(range(number)))

    def random(self) -> Workload:
        sessions = (Session(f"r{number}", (self._turn(()),)) for number in itertools.count())
        return Workload(self._spec.kind, sessions)

    def conversation(self) -> Workload:
        prefixes = self._prefixes(self._spec.num_prefixes)
        return Workload(self._spec.kind, self._conversations(prefixes), float(self._spec.turns), prefixes)

    def _conversations(self, prefixes: tuple[PackedTokens, ...]) -> Iterator[Session]:
        for number in itertools.count():
            group = number % len(prefixes)
            first = self._turn((prefixes[group],))
            others = (replace(self._turn(()), think_s=self._spec.think_s) for _ in range(self._spec.turns - 1))
            yield Session(
                f"c{number}",
                (first, *others),
                prefix_group=f"p{group}",
                prefix_tokens=self._spec.prefix_len,
                is_conversation=True,
            )

    def _over(self, prefixes: tuple[PackedTokens, ...], order: Iterator[int]) -> Workload:
        """One request each, of the prefixes in that order."""
        sessions = (
            Session(f"r{number}", (self._turn((prefixes[group],)),), f"p{group}", self._spec.prefix_len)
            for number, group in enumerate(order)
        )
        return Workload(self._spec.kind, sessions, primes=prefixes)

    def _prefixes(self, number: int) -> tuple[PackedTokens, ...]:
        if number > MAX_PREFIXES or number * self._spec.prefix_len > MAX_PREFIX_TOKENS:
            raise InvalidRequestError(
                "num-prefixes",
                f"{number:,} prefixes of {self._spec.prefix_len:,} tokens are too much for this process, which takes "
                f"{MAX_PREFIXES:,} prefixes and {MAX_PREFIX_TOKENS:,} tokens; lower --num-prefixes, --prefix-len, "
                "--pool-factor or --pool-tokens",
            )
        return tuple(self._tokens.fresh(self._spec.prefix_len) for _ in range(number))

    def _turn(self, before: tuple[PackedTokens, ...]) -> Turn:
        suffix = self._tokens.fresh(self._length(self._spec.suffix_len))
        return Turn((*before, suffix), self._length(self._spec.output_len))

    def _length(self, usual: int) -> int:
        ratio = self._spec.range_ratio
        if not ratio:
            return usual
        return int(self._rng.integers(max(1, int(usual * (1 - ratio))), int(usual * (1 + ratio)) + 1))

    def _rounds(self, number: int, times: int) -> Iterator[int]:
        """Each of `number` as often as the others, in random order within every round of `times` times each."""
        while True:
            yield from map(int, self._rng.permutation(np.repeat(np.arange(number), times)))

    def _popular(self, shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Iterator[int]:
        cumulated = np.cumsum(shares)
        while True:
            yield min(len(shares) - 1, int(np.searchsorted(cumulated, self._rng.random())))


def _flag(name: str) -> str:
    return name.replace("_", "-")

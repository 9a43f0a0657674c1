"""All benchmarks of the page: how each is run, about how long it takes, and who makes its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.bench.page import engine, routing, service
from tests.bench.page.results import Result


def _setting(text: str) -> Callable[[Result], str]:
    """Repeats, told with the settings of the run."""
    return lambda result: text.format(**result.settings)


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark."""

    name: str
    title: str
    what: str
    """In a sentence or two."""
    words: tuple[str, ...]
    """Of its command: module and options."""
    minutes: float
    """On two cores with nothing else to do, as last seen."""
    tables: Callable[[Result], str]
    repeats: Callable[[Result], str]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_slow: bool = False
    """Hits and faults do not depend on speed: it may run beside others."""


_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
_ENGINE = "SmolLM2-135M in float32 on the CPU, each side in a process of its own, without network. "

BENCHES = (
    Bench(
        "engine-prompts",
        "Engine: first tokens",
        _ENGINE + "Warm: all but the last tokens are cached.",
        ("tests.bench.engine", "--rows", "cold,warm", "--repeats", "3"),
        9.0,
        engine.engine,
        engine.repeats,
        _PASSIVE,
    ),
    Bench(
        "engine-decoding",
        "Engine: decoding, the kernel, and what blocks waste",
        _ENGINE + "The roofline is what reading weights, keys and values takes, measured between the steps.",
        ("tests.bench.engine", "--rows", "decode,overhead,kernel,waste", "--repeats", "3"),
        4.0,
        engine.engine,
        engine.repeats,
        _PASSIVE,
    ),
    Bench(
        "engine-batches",
        "Engine: requests with a shared prefix",
        _ENGINE + "Output tokens per second of all requests at once.",
        ("tests.bench.engine", "--rows", "batch", "--repeats", "3"),
        6.0,
        engine.engine,
        engine.repeats,
        _PASSIVE,
    ),
    Bench(
        "cluster",
        "Cluster: which routing rule keeps how many hits",
        "Public traces through 4 and 8 workers in simulated time, with the product's own pool, index and choice. `of "
        "pooled`: of the hits of one cache with the room of all workers. Other systems' rules stand by what they do: "
        "longest prefix, least loaded, least time to the first token (greedy).",
        ("tests.bench.cluster",),
        9.0,
        routing.cluster,
        _setting("once: a run has the same result whenever it is made"),
        is_slow=True,
    ),
    Bench(
        "replay",
        "Replay: what an eviction policy hits",
        "Per cent of all prompt tokens that were hit, one worker, by its capacity as a part of the trace's unique "
        "blocks of 512 tokens. Conversation is Mooncake's trace, agents are kv-cache-tester's Claude Code sessions. "
        "Least recently used is what vLLM evicts by.",
        ("tests.bench.replay",),
        20.0,
        routing.replay,
        _setting("once: hits are the same whenever it is run, blocks per second are not"),
        is_slow=True,
    ),
    Bench(
        "router",
        "Router: what it adds to a call",
        "Prompts of token ids that are cached, answers of one token, workers that take no time. The routers of others "
        "speak HTTP and have no tokenizer loaded, hence a straight way of their own.",
        ("tests.bench.router", "--calls", "300", "--rounds", "3", "--calls-per-round", "1000"),
        1.0,
        routing.router,
        _setting("{calls} calls one after the other, {rounds} rounds of {calls_per_round} calls at once"),
    ),
    Bench(
        "index",
        "Index: lookups, updates, ends and purges",
        "A million blocks in an embedded Valkey over its Unix socket, and in a router's copy of it.",
        ("tests.bench.index",),
        3.0,
        routing.index,
        _setting("{rounds} rounds of lookups, {updates} batches of updates, {blocks:,} blocks"),
    ),
    Bench(
        "isolation",
        "Isolation: what a tenant can tell of another one's cache",
        "`stemcache loadtest run --assert-isolation` against `stemcache up` with SmolLM2: prompts that the other "
        "tenant has cached against prompts that nobody has sent, one request at a time and both tenants at once.",
        ("tests.bench.isolation",),
        9.0,
        service.isolation,
        _setting("as many rounds as its power calculation asks for"),
        _PASSIVE,
    ),
    Bench(
        "chaos",
        "Faults: what each costs",
        "Real processes under load; every stream is compared with what it should have been. `broken`: ended with an "
        "error after the first token.",
        ("tests.chaos",),
        12.0,
        service.chaos,
        _setting("once each"),
        _PASSIVE,
    ),
    Bench(
        "telemetry",
        "Metrics and tracing: what they cost",
        "Two routers and two workers, of each one with metrics that are scraped every second and spans that are sent.",
        ("tests.bench.telemetry",),
        2.5,
        service.telemetry,
        _setting("{starts} starts, {rounds} rounds of {seconds} s a side in each, {tokens} prompt tokens"),
    ),
    Bench(
        "loadtest",
        "Load generator: how fast it is",
        "Against a server that answers at once, in turn with a bare client.",
        ("tests.bench.loadtest",),
        1.5,
        service.loadtest,
        _setting("{rounds} rounds of {calls:,} calls"),
    ),
    Bench(
        "fetch",
        "Blocks of another worker: fetched against computed",
        "SmolLM2, two workers, gRPC on loopback; medians.",
        ("tests.bench.fetch",),
        1.5,
        service.fetch,
        _setting("{repeats} prompts of each length"),
        _PASSIVE,
    ),
    Bench(
        "pool",
        "Block pool: the work for one prompt",
        "Match, allocate, make matchable and let go, with index events. vLLM's cache manager has hashed its blocks "
        "before, which is not in its times.",
        ("tests.bench.pool",),
        1.0,
        service.pool,
        _setting("{rounds} rounds, all sides in turn"),
    ),
)

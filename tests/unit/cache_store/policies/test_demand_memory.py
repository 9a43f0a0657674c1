"""What recent requests left behind."""

from __future__ import annotations

from dataclasses import dataclass

from cache_store.policies.demand_memory import DemandMemory, Region, Remembered, Watched
from cache_store.policy import Use


@dataclass
class Named:
    digest: bytes
    shared: bool = False
    use: Use | None = None


def blocks(text: str) -> list[Named]:
    """A block per letter, named by all letters up to it."""
    return [Named(text[: end + 1].encode()) for end in range(len(text))]


def remembered(new: str, answer: str, time_s: float = 0.0) -> Remembered:
    request = Remembered(time_s, 1, 100, b"", 0, 0)
    request.parts = {
        Region.NEW: Watched(new.encode(), 0, time_s),
        Region.ANSWER: Watched(answer.encode(), 0, time_s),
    }
    return request


def test_the_deepest_known_block_is_found() -> None:
    memory = DemandMemory()
    first, second = remembered("ab", "abc"), remembered("abcd", "abcde")
    memory.add(first)
    memory.add(second)
    found = memory.find(blocks("abcdx"))
    assert found is not None
    assert (found.request, found.region, found.num_blocks) == (second, Region.NEW, 4)
    found = memory.find(blocks("abcx"))
    assert found is not None
    assert (found.request, found.region, found.num_blocks) == (first, Region.ANSWER, 3)
    assert memory.find(blocks("axx")) is None


def test_a_place_belongs_to_the_request_that_used_it_last() -> None:
    memory = DemandMemory()
    again = remembered("ab", "aby")
    memory.add(remembered("ab", "abx"))
    memory.add(again)
    found = memory.find(blocks("abz"))
    assert found is not None
    assert found.request is again


def test_the_oldest_is_forgotten_and_watched_no_more() -> None:
    memory = DemandMemory(max_requests=2)
    first, second = remembered("a", "ax"), remembered("b", "bx")
    for request in (first, second, remembered("c", "cx")):
        memory.add(request)
    assert len(memory) == 2
    assert memory.find(blocks("a")) is None
    assert memory.find(blocks("b")) is not None
    assert not any(part.is_open for part in first.parts.values())
    assert all(part.is_open for part in second.parts.values())


def test_forgetting_leaves_a_place_that_another_took_over() -> None:
    memory = DemandMemory(max_requests=2)
    latest = remembered("ab", "abx")
    for request in (remembered("ab", "aby"), latest, remembered("c", "cx")):
        memory.add(request)
    found = memory.find(blocks("ab"))
    assert found is not None
    assert found.request is latest

"""The class-aware policy: parts and classes of requests, what it learns, and what it does not let itself be told."""

from __future__ import annotations

import random

import pytest

from cache_store.policies.class_aware import MAX_CLASSES, MAX_STOPS, ClassAware
from cache_store.policies.lru import Lru
from cache_store.policy import WORTHLESS, ClassId, Part, Use
from cache_store.replay.simulation import ReplayOptions, TraceTenant, replay
from tests.support.outcomes import make_outcome
from tests.support.traces import chat_trace
from tests.unit.cache_store.policies.test_demand_memory import Named, blocks


def end(policy: ClassAware, text: str, now_s: float, num_answer: int = 1, **outcome: object) -> list[Part]:
    """A request whose blocks are the letters, the last ones its answer's."""
    prompt = len(text) - num_answer
    made = make_outcome(prompt_tokens=100 * prompt, **outcome)  # type: ignore[arg-type]  # of a test's own words
    return list(policy.uses(made, blocks(text), prompt, now_s))


def ends(parts: list[Part]) -> list[int]:
    return [part.end for part in parts]


def test_a_first_request_is_new_prompt_and_answer() -> None:
    assert ends(end(ClassAware(), "abcdef", 0.0, num_answer=2)) == [4, 6]


def test_without_an_answer_of_its_own_the_last_block_counts_as_one() -> None:
    assert ends(end(ClassAware(), "abcd", 0.0, num_answer=0)) == [3, 4]


def test_one_that_goes_on_has_an_earlier_part_and_the_next_turn() -> None:
    policy = ClassAware()
    end(policy, "abcd", 0.0)
    parts = end(policy, "abcdefg", 10.0, num_answer=2)
    assert ends(parts) == [4, 5, 7]
    assert {part.use.turn for part in parts} == {2}
    assert len({part.use.class_id for part in parts}) == 3


def test_an_answer_that_comes_back_in_other_words_does_not_hide_the_turn() -> None:
    policy = ClassAware()
    end(policy, "abcdXYZ", 0.0, num_answer=3)
    parts = end(policy, "abcdxyzEF", 10.0)
    assert ends(parts)[0] == 4
    assert parts[0].use.turn == 2


def test_what_all_sessions_begin_with_makes_no_turn() -> None:
    policy = ClassAware()
    turns = [
        end(policy, f"system{letters}", float(now), 1)[0].use.turn for now, letters in enumerate(("ab", "cd", "ef"))
    ]
    assert turns == [1, 1, 1]
    end(policy, "s1", 10.0)
    turns = [end(policy, f"s{letter}", 11.0)[0].use.turn for letter in "234567"]
    assert set(turns[2:]) == {1}, "one short prompt looks like a turn of its own, and is forgotten soon"


def test_of_a_session_that_ends_only_what_others_have_too_is_kept() -> None:
    for says_so in (False, True):
        policy = ClassAware()
        others = Use(15.0, ClassId(0))
        end(policy, "sysxyz", 10.0)
        again = [Named(b.digest, use=others if number < 3 else None) for number, b in enumerate(blocks("sysxyzuv"))]
        outcome = make_outcome(prompt_tokens=700, session_end=says_so)
        parts = policy.uses(outcome, again, 7, 20.0)
        worths = [policy.value(part.use.class_id, 1.0) for part in parts]
        assert (WORTHLESS in worths) is says_so
        if says_so:
            assert ends(list(parts)) == [3, 8]
            assert worths[0] > WORTHLESS == worths[1]


def test_a_time_to_live_is_that_of_all_parts() -> None:
    parts = end(ClassAware(), "abcd", 5.0, ttl_s=30.0)
    assert {part.use.expires_s for part in parts} == {35.0}


def tools_and_farewells(policy: ClassAware) -> tuple[list[Part], list[Part]]:
    """Sessions in which tool calls always go on soon and farewells never; the parts of one more of each."""
    now_s = 0.0
    for number in range(300):
        now_s += 30.0
        end(policy, f"{number:04}tool", now_s, stop="tool")
        end(policy, f"{number:04}toolmore", now_s + 5.0, stop="bye")
    return end(policy, "9998tool", now_s, stop="tool"), end(policy, "9999byes", now_s, stop="bye")


def test_it_learns_which_ends_are_followed_by_more() -> None:
    policy = ClassAware()
    tool, bye = tools_and_farewells(policy)
    assert policy.value(tool[0].use.class_id, 1.0) > 20 * policy.value(bye[0].use.class_id, 1.0) > 0


def test_a_tenant_cannot_make_classes_without_bound() -> None:
    few, many = ClassAware(), ClassAware()
    for number in range(200):
        end(few, f"{number:04}x", float(number), stop=f"stop:{number % (MAX_STOPS + 1)}")
        end(many, f"{number:04}x", float(number), stop=f"stop:{number}")
    classes = [
        {end(policy, f"{number}y", 500.0, stop=f"stop:{number}")[0].use.class_id for number in range(1000, 1100)}
        for policy in (few, many)
    ]
    assert len(classes[1]) == 1, "stops that are new to it are one class"


def test_what_it_tells_apart_is_bounded_however_varied_requests_are() -> None:
    rng, policy = random.Random(1), ClassAware()
    seen: set[ClassId] = set()
    texts = ["a"]
    now_s = 0.0
    for number in range(4_000):
        now_s += rng.choice((1.0, 100.0, 300.0))
        text = rng.choice(texts[-50:]) + chr(1_000 + number) * rng.randint(1, 60)
        texts.append(text)
        parts = end(
            policy,
            text[-400:],
            now_s,
            stop=f"stop:{rng.randrange(9)}",
            output_tokens=rng.choice((10, 100, 1_000)),
            session=rng.choice((b"", b"s")),
        )
        seen |= {part.use.class_id for part in parts}
    assert 100 < len(seen) <= MAX_CLASSES


def test_it_learns_from_demand_that_the_cache_does_not_meet() -> None:
    trace = chat_trace(random.Random(1), num_requests=400)
    policies: list[ClassAware] = []

    def make() -> ClassAware:
        policies.append(ClassAware())
        return policies[-1]

    hits = [replay([TraceTenant("a", trace)], ReplayOptions(num, make)).hit_tokens for num in (1, 10_000)]
    assert hits[0] < hits[1] / 4
    probe = make_outcome(prompt_tokens=500)
    small, large = (policy.uses(probe, [Named(b"p"), Named(b"q")], 1, 1_000.0)[0].use for policy in policies)
    for age_s in (1.0, 30.0, 300.0):
        worth = policies[1].value(large.class_id, age_s)
        assert policies[0].value(small.class_id, age_s) == pytest.approx(worth, rel=0.5)


def test_it_beats_lru_where_only_some_sessions_go_on() -> None:
    trace = chat_trace(random.Random(2), num_requests=3_000, num_sessions=40)
    tenants = [TraceTenant("chat", trace)]
    lru, learnt = (replay(tenants, ReplayOptions(60, policy)).hit_tokens for policy in (Lru, ClassAware))
    assert learnt > lru

"""The demo's claims can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.client import Route, Usage
from services.demo.requests import Answer
from services.demo.verdicts import Answers, judge

COLD, WARM = Usage(100, 3, 0, 100), Usage(100, 3, 96, 4)


def _answer(label: str, usage: Usage, token_ids: tuple[int, ...] = (1, 2, 3)) -> Answer:
    return Answer(label, 0.1, usage, Route("worker-0", degraded=False, attempts=1), token_ids, "text")


GOOD = Answers(
    first=_answer("first", COLD),
    follow_up=_answer("follow-up", WARM, (7, 8)),
    other_tenant=_answer("other", COLD),
    other_repeated=_answer("other again", WARM),
    repeated=_answer("first again", WARM),
    uncached={"worker-0": _answer("uncached", COLD), "worker-1": _answer("uncached", COLD)},
)


def _failed(answers: Answers) -> list[str]:
    return [verdict.claim for verdict in judge(answers, num_workers=2) if not verdict.holds]


def test_all_holds() -> None:
    assert _failed(GOOD) == []


@pytest.mark.parametrize(
    ("answers", "claim"),
    [
        (replace(GOOD, first=_answer("first", WARM)), "acme's first request computes its whole prompt"),
        (replace(GOOD, follow_up=_answer("follow-up", COLD)), "acme's follow-up reuses the shared system prompt"),
        (
            replace(GOOD, other_tenant=_answer("other", Usage(100, 3, 16, 84))),
            "globex reuses nothing of acme's, with the very same prompt",
        ),
        (replace(GOOD, other_repeated=_answer("other again", COLD)), "globex reuses its own"),
        (replace(GOOD, repeated=_answer("first again", COLD)), "acme still reuses its own"),
        (
            replace(GOOD, repeated=_answer("first again", WARM, (1, 2, 4))),
            "first again: greedy tokens equal those of every uncached run",
        ),
        (
            replace(GOOD, uncached={"worker-0": GOOD.first}),
            "an uncached run was made on every worker",
        ),
    ],
)
def test_each_claim_fails_alone(answers: Answers, claim: str) -> None:
    assert _failed(answers) == [claim]


def test_a_cached_run_is_no_reference() -> None:
    answers = replace(GOOD, uncached={**GOOD.uncached, "worker-1": _answer("uncached", WARM)})
    assert _failed(answers) == ["an uncached run was made on every worker"]


def test_other_tokens_on_another_worker_are_noticed() -> None:
    answers = replace(GOOD, uncached={**GOOD.uncached, "worker-1": _answer("uncached", COLD, (1, 2, 9))})
    assert len(_failed(answers)) == 4

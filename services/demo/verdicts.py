"""What the demo claims, checked on its answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.demo.requests import Answer

_LEAST_SHARE = 0.8
"""Of the prompt of a repeated request: the part before the question, at least."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, and whether it holds."""

    claim: str
    holds: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that was answered, in order."""

    first: Answer
    """acme, cold."""
    follow_up: Answer
    """acme, another question after the same system prompt."""
    other_tenant: Answer
    """globex, the prompt of `first`."""
    other_repeated: Answer
    """globex, once more."""
    repeated: Answer
    """acme, the prompt of `first` once more."""
    uncached: Mapping[str, Answer]
    """The prompt of `first` past the cache, by worker."""

    @property
    def table(self) -> tuple[Answer, ...]:
        """The rows to show."""
        return (self.first, self.follow_up, self.other_tenant, self.other_repeated)


def judge(answers: Answers, num_workers: int) -> list[Verdict]:
    """All claims of the demo."""
    return [
        _cold(answers.first, "acme's first request computes its whole prompt"),
        _warm(answers.follow_up, "acme's follow-up reuses the shared system prompt"),
        _cold(answers.other_tenant, "globex reuses nothing of acme's, with the very same prompt"),
        _warm(answers.other_repeated, "globex reuses its own"),
        _warm(answers.repeated, "acme still reuses its own"),
        *_exact(answers, num_workers),
    ]


def _cold(answer: Answer, claim: str) -> Verdict:
    usage = answer.usage
    return Verdict(claim, usage.cached_tokens == 0, f"{usage.cached_tokens} of {usage.prompt_tokens} tokens cached")


def _warm(answer: Answer, claim: str) -> Verdict:
    usage = answer.usage
    holds = usage.cached_tokens >= _LEAST_SHARE * usage.prompt_tokens and usage.computed_tokens >= 1
    return Verdict(claim, holds, f"{usage.cached_tokens} of {usage.prompt_tokens} tokens cached")


def _exact(answers: Answers, num_workers: int) -> list[Verdict]:
    reference = answers.first
    verdicts = [
        Verdict(
            "an uncached run was made on every worker",
            len(answers.uncached) == num_workers
            and all(answer.usage.cached_tokens == 0 for answer in answers.uncached.values()),
            f"on {', '.join(sorted(answers.uncached))}",
        )
    ]
    for answer in (answers.first, answers.repeated, answers.other_tenant, answers.other_repeated):
        others = [each.token_ids for each in answers.uncached.values()]
        verdicts.append(
            Verdict(
                f"{answer.label}: greedy tokens equal those of every uncached run",
                bool(others) and len(reference.token_ids) > 1 and all(answer.token_ids == each for each in others),
                f"{len(answer.token_ids)} tokens on {answer.route.worker_id}",
            )
        )
    return verdicts

"""The most that any policy could hit: Belady's choice, which knows what comes, in one pool that all tenants share.

Model: a request hits its leading blocks that are there, and holds all its blocks (as many as fit) at once; beside them
others may be kept, in all at most `num_blocks`, each with its parent. The room for others is the same whatever was
chosen before, so that keeping those that are used again soonest is optimal where blocks need no parents (Belady 1966).
A parent is used again no later than any of its children, so the blocks used again soonest can be taken with their
parents: ties go to the block nearer to the root. So the optimum without the condition satisfies it, and is the optimum
with it. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from cache_store.replay.simulation import TraceTenant

NEVER = 1 << 62
NOW = -1
"""Held by the request that is being served."""

_Block: TypeAlias = int
_Prompt: TypeAlias = "array[int]"


def optimal_hit_tokens(tenants: Sequence[TraceTenant], num_blocks: int) -> dict[str, int]:
    """Hit tokens of each tenant under the optimum of the sum of hit blocks."""
    prompts = _prompts(tenants)
    following = _following(prompts)
    kept: dict[_Block, int] = {}
    order: list[tuple[int, int, _Block]] = []
    hits = dict.fromkeys((tenant.name for tenant in tenants), 0)
    for (tenant, prompt_tokens, blocks), nexts in zip(prompts, following, strict=True):
        num_hit = 0
        while num_hit < len(blocks) and blocks[num_hit] in kept:
            num_hit += 1
        hits[tenant.name] += min(num_hit * tenant.trace.block_tokens, prompt_tokens)
        held = blocks[:num_blocks]
        num_others = len(kept) - sum(block in kept for block in held)
        for block in held:
            kept[block] = NOW
        while num_others > num_blocks - len(held):
            at, _, block = heappop(order)
            if kept.get(block) == -at:
                del kept[block]
                num_others -= 1
        for depth, block in enumerate(held):
            kept[block] = nexts[depth]
            heappush(order, (-nexts[depth], -depth, block))
    return hits


def _prompts(tenants: Sequence[TraceTenant]) -> list[tuple[TraceTenant, int, _Prompt]]:
    """All requests in time, blocks of different tenants told apart."""
    merged = sorted(
        ((request.at_s, number, request) for number, each in enumerate(tenants) for request in each.trace.requests),
        key=lambda entry: entry[:2],
    )
    prompts = []
    for _, number, request in merged:
        symbols = array("I")
        symbols.frombytes(request.blocks)
        blocks = array("q", (symbol + (number << 32) for symbol in symbols))
        prompts.append((tenants[number], request.prompt_tokens, blocks))
    return prompts


def _following(prompts: Sequence[tuple[TraceTenant, int, _Prompt]]) -> list[_Prompt]:
    """For each block of each request, the number of the next request that uses it."""
    later: dict[_Block, int] = {}
    following = []
    for number in range(len(prompts) - 1, -1, -1):
        blocks = prompts[number][2]
        following.append(array("q", (later.get(block, NEVER) for block in blocks)))
        later.update(dict.fromkeys(blocks, number))
    following.reverse()
    return following

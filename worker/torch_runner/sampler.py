"""Draws tokens from logits: greedy, temperature, top-k, top-p, banned ids; one random number per draw.

The number comes from the draw's counter (`worker/sampling.py`), and the distribution is walked in order of token ids,
so a sample depends on its own logits alone. Owns no state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worker.sampling import uniform
from worker.step_plan import Draw, Row, RowFailure

_FEW = 1024
"""Most probable tokens among which a nucleus is looked for before the whole vocabulary is sorted."""


def draw_rows(rows: tuple[Row, ...], logits: Tensor) -> tuple[tuple[int, ...] | RowFailure, ...]:
    """Outcomes of all rows; `logits` [rows that draw, vocabulary], in the order of the rows."""
    if logits.shape[0] == 0:
        return ((),) * len(rows)
    extremes = torch.stack(logits.aminmax(dim=-1))  # carry NaN and infinity
    finite = extremes.isfinite().all(0).tolist()
    greedy = logits.argmax(-1).tolist()
    outcomes: list[tuple[int, ...] | RowFailure] = []
    index = 0
    for row in rows:
        if not row.draws:
            outcomes.append(())
            continue
        if finite[index]:
            outcomes.append(tuple(_draw(draw, logits[index], greedy[index]) for draw in row.draws))
        else:
            outcomes.append(RowFailure("the model gave logits that are not finite"))
        index += 1
    return tuple(outcomes)


def _draw(draw: Draw, logits: Tensor, greedy: int) -> int:
    if draw.banned:
        banned = torch.tensor([token_id for token_id in draw.banned if token_id < logits.shape[0]], dtype=torch.int64)
        logits = logits.index_fill(0, banned.to(logits.device), -torch.inf)
        greedy = int(logits.argmax())
    if draw.temperature == 0:
        return greedy
    return draw_from(probabilities(logits, draw), uniform(draw.seed, draw.sample_index, draw.position))


def probabilities(logits: Tensor, draw: Draw) -> Tensor:
    """[vocabulary], float64: what `draw` leaves of the distribution, not normalised.

    Top-k first, then the smallest set of most probable tokens that reaches top_p; of equally probable tokens the lower
    id counts as more probable.
    """
    scaled = logits.double() / draw.temperature
    weights = (scaled - scaled.max()).exp()
    if 0 < draw.top_k < weights.shape[0]:
        weights = _keep(weights, draw.top_k)
    if draw.top_p < 1:
        weights = _keep(weights, _nucleus(weights, draw.top_p))
    return weights


def _keep(weights: Tensor, count: int) -> Tensor:
    """The `count` largest weights, ties by lower id; all others 0."""
    least = weights.topk(count).values[-1]
    ties = weights == least
    num_ties = count - int((weights > least).sum())
    kept = (weights > least) | (ties & (ties.cumsum(0) <= num_ties))
    return weights.where(kept, 0.0)


def _nucleus(weights: Tensor, top_p: float) -> int:
    """Number of largest weights that together reach `top_p` of the total; sorts only as many as needed."""
    enough = top_p * weights.sum()
    size = weights.shape[0]
    for limit in (min(_FEW, size), size):
        largest = weights.topk(limit).values
        count = int((largest.cumsum(0) - largest < enough).sum())
        if count < limit:
            return count
    return size


def draw_from(weights: Tensor, number: float) -> int:
    """The token at which the running sum over ids passes `number` (in [0, 1)) of the total; never one of weight 0."""
    sums = weights.cumsum(0)
    token_id = int(torch.searchsorted(sums, sums[-1] * number, right=True))
    if token_id < weights.shape[0] and weights[token_id] > 0:
        return token_id
    return int(weights.nonzero()[-1])  # rounding carried the number to the total

"""Draws tokens from logits: greedy, temperature, top-k, top-p, banned ids; one random number per draw.

The number comes from the draw's counter (`worker/sampling.py`), and the distribution is walked in order of token ids,
so a sample depends on its own logits alone. All draws of a step go through the same few operations together; the host
waits for a device once per pass and not once per request. Owns no state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worker.sampling import uniform
from worker.step_plan import Draw, Row, RowFailure

_FEW = 1024
"""Most probable tokens among which a nucleus is looked for before the whole vocabulary is sorted."""
_CPU_PASS, _DEVICE_PASS = 1 << 18, 1 << 24
"""Probabilities computed at once: 2 MiB stay in a CPU's cache; a device has room for more and is waited for less."""


def draw_rows(rows: tuple[Row, ...], logits: Tensor) -> tuple[tuple[int, ...] | RowFailure, ...]:
    """Outcomes of all rows; `logits` [rows that draw, vocabulary], in the order of the rows."""
    if logits.shape[0] == 0:
        return ((),) * len(rows)
    finite, tokens = _finite(logits), _largest(logits)
    drawing = [row for row in rows if row.draws]
    special = [
        (index, draw)
        for index, row in enumerate(drawing)
        for draw in row.draws
        if finite[index] and (draw.banned or draw.temperature)
    ]
    drawn = iter(_draw_special(special, logits))
    outcomes: list[tuple[int, ...] | RowFailure] = []
    index = 0
    for row in rows:
        if not row.draws:
            outcomes.append(())
            continue
        if finite[index]:
            found = (next(drawn) if draw.banned or draw.temperature else tokens[index] for draw in row.draws)
            outcomes.append(tuple(found))
        else:
            outcomes.append(RowFailure("the model gave logits that are not finite"))
        index += 1
    return tuple(outcomes)


def _finite(logits: Tensor) -> list[bool]:
    """Per row, whether all are finite. Extremes, and sums, carry what is not; looking takes many times as long."""
    if logits.device.type == "cpu":  # one thread is done before others are awake
        values = logits.numpy()
        extremes: list[bool] = (np.isfinite(values.max(-1)) & np.isfinite(values.min(-1))).tolist()
        return extremes
    finite = logits.sum(-1).isfinite()
    if not finite.all():
        finite = logits.isfinite().all(-1)  # sums of large numbers overflow too
    result: list[bool] = finite.tolist()
    return result


def _largest(logits: Tensor) -> list[int]:
    """Per row the token of the largest logit, of equals the lower id."""
    result: list[int] = (logits.numpy() if logits.device.type == "cpu" else logits).argmax(-1).tolist()
    return result


def _draw_special(draws: Sequence[tuple[int, Draw]], logits: Tensor) -> list[int]:
    """What is more than the largest logit: draws by row of `logits`."""
    size = max(1, (_CPU_PASS if logits.device.type == "cpu" else _DEVICE_PASS) // logits.shape[1])
    tokens: list[int] = []
    for low in range(0, len(draws), size):
        part = draws[low : low + size]
        rows = torch.tensor([index for index, _ in part], device=logits.device)
        tokens += _draw_pass([draw for _, draw in part], logits[rows])
    return tokens


def _draw_pass(draws: Sequence[Draw], logits: Tensor) -> list[int]:
    """One token per row of `logits`, a copy."""
    _ban(draws, logits)
    tokens = _largest(logits)
    sampled = [index for index, draw in enumerate(draws) if draw.temperature]
    if sampled:
        chosen = [draws[index] for index in sampled]
        weights = probabilities(logits if len(sampled) == len(draws) else logits[sampled], chosen)
        numbers = [uniform(draw.seed, draw.sample_index, draw.position) for draw in chosen]
        for index, token in zip(sampled, draw_from(weights, numbers), strict=True):
            tokens[index] = token
    return tokens


def _ban(draws: Sequence[Draw], logits: Tensor) -> None:
    size = logits.shape[1]
    banned = [(row, token) for row, draw in enumerate(draws) for token in draw.banned if token < size]
    if banned:
        rows, tokens = torch.tensor(banned, device=logits.device).T
        logits[rows, tokens] = -torch.inf


def probabilities(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """[draws, vocabulary], float64: what each draw leaves of its row's distribution, not normalised.

    Top-k first, then the smallest set of most probable tokens that reaches top_p; of equally probable tokens the lower
    id counts as more probable.
    """
    temperatures = torch.tensor([draw.temperature for draw in draws], dtype=torch.float64, device=logits.device)
    weights = logits.double().div_(temperatures.unsqueeze(1))
    weights.sub_(weights.amax(-1, keepdim=True)).exp_()
    size = weights.shape[1]
    few = [index for index, draw in enumerate(draws) if 0 < draw.top_k < size]
    if few:
        counts = torch.tensor([draws[index].top_k for index in few], device=weights.device)
        part = weights[few]
        weights[few] = _keep(part, part.topk(max(draws[index].top_k for index in few)).values, counts)
    nuclei = [index for index, draw in enumerate(draws) if draw.top_p < 1]
    if nuclei:
        shares = torch.tensor([draws[index].top_p for index in nuclei], dtype=torch.float64, device=weights.device)
        weights[nuclei] = _nuclei(weights[nuclei], shares)
    return weights


def _keep(weights: Tensor, largest: Tensor, counts: Tensor) -> Tensor:
    """The `counts` largest weights of each row, ties by lower id; all others 0. `largest` are sorted, as many."""
    least = largest.gather(1, counts.unsqueeze(1) - 1)
    kept = weights >= least
    if not kept.sum(-1).equal(counts):
        above, ties = weights > least, weights == least
        num_ties = counts - above.sum(-1)
        kept = above | (ties & (ties.cumsum(-1) <= num_ties.unsqueeze(1)))
    return weights.where(kept, 0.0)


def _nuclei(weights: Tensor, shares: Tensor) -> Tensor:
    """The largest weights of each row that together reach its share of the total; sorts only as many as needed."""
    size = weights.shape[1]
    enough = shares * torch.stack([row.sum() for row in weights])
    limit = min(_FEW, size)
    largest = weights.topk(limit).values
    counts = (largest.cumsum(-1) - largest < enough.unsqueeze(1)).sum(-1)
    kept = _keep(weights, largest, counts)
    more = (counts == limit).nonzero().flatten()
    if limit < size and more.numel():
        largest = weights[more].topk(size).values
        counts = (largest.cumsum(-1) - largest < enough[more].unsqueeze(1)).sum(-1)
        kept[more] = _keep(weights[more], largest, counts)
    return kept


def draw_from(weights: Tensor, numbers: Sequence[float]) -> list[int]:
    """Per row the token at which the running sum over ids passes its number (in [0, 1)) of the total.

    Never a token of weight 0.
    """
    sums = weights.cumsum(-1)
    goals = sums[:, -1] * torch.tensor(numbers, dtype=sums.dtype, device=sums.device)
    tokens = torch.searchsorted(sums, goals.unsqueeze(1), right=True)
    last = weights.shape[1] - 1 - (weights > 0).flip(-1).int().argmax(-1, keepdim=True)
    possible = (tokens <= last) & (weights.gather(1, tokens.clamp(max=last)) > 0)
    result: list[int] = tokens.where(possible, last).flatten().tolist()  # rounding carried the number to the total
    return result

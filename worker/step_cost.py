"""What a step costs here, learnt from the steps so far: the prices at which service is charged.

A step is taken to last `base + token × prompt tokens + decode × decoding rows` seconds. The three are fitted by least
squares; steps count less the older they are, no step moves the fit by more than its clip, and no price is negative. The
price of a token or a row is by how much it makes a step longer: the base is nobody's, since a step with others in it is
no longer for it. Pure; owned by the scheduler.
"""

from __future__ import annotations

MEMORY_STEPS = 128
"""A step weighs 1/e after that many more."""

CLIP = 4.0
"""A step counts as lasting at most that many times as long as expected, and at least that part of it."""

_NUM_UNCLIPPED = 16
_START = (0.005, 0.000_5, 0.001)
"""Base, prompt token and decoding row, in seconds: what a small model on a CPU takes."""

_ANCHOR = 0.01
"""Pull towards the last fit, relative to the weight of the data: decides where the steps tell nothing."""

_Row = list[float]


class StepCost:
    """Prices in seconds."""

    def __init__(self) -> None:
        self._prices = list(_START)
        self._gram: list[_Row] = [[0.0] * 3 for _ in range(3)]
        self._moment = [0.0] * 3
        self._num_steps = 0

    @property
    def token_s(self) -> float:
        """Of a prompt token."""
        return self._prices[1]

    @property
    def decode_s(self) -> float:
        """Of a row that decodes."""
        return self._prices[2]

    def expected_s(self, num_prefill_tokens: int, num_decodes: int) -> float:
        """How long a step is expected to last."""
        base, token, decode = self._prices
        return base + token * num_prefill_tokens + decode * num_decodes

    def add(self, num_prefill_tokens: int, num_decodes: int, seconds: float) -> None:
        """A step took `seconds`."""
        if seconds <= 0:
            return
        self._num_steps += 1
        if self._num_steps > _NUM_UNCLIPPED:
            expected = self.expected_s(num_prefill_tokens, num_decodes)
            seconds = min(max(seconds, expected / CLIP), expected * CLIP)
        kept = 1 - 1 / min(self._num_steps, MEMORY_STEPS)
        features = (1.0, float(num_prefill_tokens), float(num_decodes))
        for i, row in enumerate(self._gram):
            self._moment[i] = self._moment[i] * kept + features[i] * seconds * (1 - kept)
            for j in range(3):
                row[j] = row[j] * kept + features[i] * features[j] * (1 - kept)
        self._fit()

    def _fit(self) -> None:
        gram = [list(row) for row in self._gram]
        moment = list(self._moment)
        for i in range(3):
            pull = _ANCHOR * (gram[i][i] or 1.0)
            gram[i][i] += pull
            moment[i] += pull * self._prices[i]
        free = [0, 1, 2]
        while True:
            solution = _solve([[gram[i][j] for j in free] for i in free], [moment[i] for i in free])
            negative = [index for index, value in zip(free, solution, strict=True) if value < 0]
            if not negative:
                break
            free = [index for index in free if index not in negative]
        self._prices = [0.0] * 3
        for index, value in zip(free, solution, strict=True):
            self._prices[index] = value


def _solve(matrix: list[_Row], right: _Row) -> _Row:
    """Gauss without pivoting: the matrix is positive definite."""
    size = len(right)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            right[k] -= factor * right[i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
    for i in reversed(range(size)):
        right[i] -= sum(matrix[i][j] * right[j] for j in range(i + 1, size))
        right[i] /= matrix[i][i]
    return right

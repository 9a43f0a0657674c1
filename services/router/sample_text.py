"""From a sample's tokens to what its caller sees: text, stop strings found, tokens counted up to the stop.

Puts detokenizer and stop strings together. Owns the state of one sample's text.
"""

from __future__ import annotations

from cache_store.tokens import PackedTokens, pack, unpack
from services.router.detokenizer import Detokenizer
from services.router.generation import FinishReason, Piece
from services.router.stop_strings import StopStrings


class SampleText:
    """Text of one sample."""

    def __init__(self, sample_index: int, detokenizer: Detokenizer | None, stops: StopStrings) -> None:
        """`detokenizer` is None for a model without text."""
        self._sample_index = sample_index
        self._detokenizer = detokenizer
        self._stops = stops
        self._finish: FinishReason | None = None

    @property
    def ended(self) -> bool:
        """Whether the sample has ended; its later tokens are nobody's."""
        return self._finish is not None

    def push(self, tokens: PackedTokens, finish: FinishReason | None) -> Piece:
        """Takes the next tokens. A stop string ends the sample before the worker does; tokens after it are dropped."""
        assert not self.ended, "the sample has ended"
        ids = unpack(tokens)
        text: list[str] = []
        for at, token in enumerate(ids):
            is_stop_token = finish is FinishReason.STOP and at == len(ids) - 1
            if not is_stop_token:
                text.append(self._step(token))
            if self._stops.found:
                return self._piece(text, pack(ids[: at + 1]), FinishReason.STOP)
        if finish is not None:
            text.append(self._rest())
            finish = FinishReason.STOP if self._stops.found else finish
        return self._piece(text, tokens, finish)

    def _step(self, token: int) -> str:
        return self._stops.push(self._detokenizer.push(token)) if self._detokenizer else ""

    def _rest(self) -> str:
        """What was held back; an incomplete character may still complete a stop string."""
        text = self._stops.push(self._detokenizer.flush()) if self._detokenizer else ""
        return text if self._stops.found else text + self._stops.flush()

    def _piece(self, text: list[str], tokens: PackedTokens, finish: FinishReason | None) -> Piece:
        self._finish = finish
        return Piece(self._sample_index, "".join(text), tokens, finish)

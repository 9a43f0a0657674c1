"""The window of a mask is read off transformers' own rules; what is no window is told apart."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from worker.torch_runner.mask_probe import window_of


@pytest.mark.parametrize("window", [1, 2, 24, 4096, 1 << 20])
def test_a_window_is_found(window: int) -> None:
    assert window_of(sliding_window_causal_mask_function(window)) == window


def test_a_causal_mask_hides_nothing_behind() -> None:
    assert window_of(causal_mask_function) == 0


@pytest.mark.parametrize("chunk", [2, 3, 7, 8192, 1 << 20])
def test_a_chunk_is_no_window(chunk: int) -> None:
    assert window_of(chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.int64))) < 0


def test_what_looks_ahead_is_no_window() -> None:
    assert window_of(bidirectional_mask_function) < 0
    assert window_of(sliding_window_bidirectional_mask_function(8)) < 0

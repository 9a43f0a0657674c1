"""Signals as requests."""

from __future__ import annotations

import os
import signal

import pytest

from cache_store.errors import CancelledRequestError
from services.cluster.stop_signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request_and_interrupts_nothing(number: signal.Signals) -> None:
    with StopSignals() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.wait(5.0)
        assert stop.requested
        with pytest.raises(CancelledRequestError, match=number.name):
            stop.check()


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before

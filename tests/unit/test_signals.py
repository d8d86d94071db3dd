"""Signals that are answered otherwise for the length of a block."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bookwarden.signals import at_signals, sigterm_unwinds

BOTH = (signal.SIGTERM, signal.SIGINT)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in BOTH]


def test_each_signal_is_told_in_the_block_and_what_was_before_holds_after_it() -> None:
    before, told = handlers(), list[signal.Signals]()
    with at_signals(told.append):
        for number in BOTH:
            os.kill(os.getpid(), number)
    assert told == list(BOTH)
    assert handlers() == before


def test_what_the_call_raises_is_raised_in_the_block_and_what_was_before_holds_after_it() -> None:
    def refuse(number: signal.Signals) -> None:
        raise ValueError(number.name)

    before = handlers()
    with pytest.raises(ValueError, match="SIGTERM"), at_signals(refuse):
        os.kill(os.getpid(), signal.SIGTERM)
    assert handlers() == before


def test_sigterm_unwinds_as_ctrl_c_does_and_sigint_stays_as_it_was() -> None:
    before = handlers()
    with sigterm_unwinds():
        assert handlers()[1:] == before[1:]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert handlers() == before


def test_another_thread_leaves_signals_alone() -> None:
    before, seen = handlers(), list[object]()

    def block() -> None:
        with at_signals(lambda _: None):
            seen.extend(handlers())

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == before

"""Signals that are answered otherwise for the length of a block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

from bookwarden.signals import at_signals, interrupts_held_back, sigterm_unwinds

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


@pytest.mark.parametrize(("interrupts", "ends"), [(0, True), (1, True), (2, False)])
def test_an_interrupt_is_held_back_until_the_end_of_the_block_and_a_second_one_is_not(
    interrupts: int, ends: bool
) -> None:
    before, ended = handlers(), False

    def block() -> None:
        nonlocal ended
        with interrupts_held_back():
            for _ in range(interrupts):
                os.kill(os.getpid(), signal.SIGINT)
            ended = True

    with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
        block()
    assert ended is ends
    assert handlers() == before


def test_an_interrupt_while_python_forks_is_not_lost() -> None:
    """As logging's own hook: what a handler raises there is dropped."""
    program = """
import os, signal, subprocess, sys
from bookwarden.signals import interrupts_held_back
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
with interrupts_held_back():
    subprocess.Popen(["true"], preexec_fn=lambda: None).wait()
sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "ignored" not in done.stderr

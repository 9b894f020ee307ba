"""A long start is shown, a short one is not; time is told, not waited for."""

import logging
import sys

import pytest

from tenuto.memory.progress import Progress, terminal_bar
from tenuto.testing.clock import FakeClock

pytestmark = pytest.mark.unit

GIB = 1 << 30


class KeptBar:
    def __init__(self):
        self.moves = []
        self.is_closed = False

    def move_to(self, done_bytes):
        self.moves.append(done_bytes)

    def close(self):
        self.is_closed = True


class Rig:
    def __init__(self, has_bar):
        self.clock = FakeClock()
        self.bars = []
        self.has_bar = has_bar
        self.progress = Progress("host arena", 64 * GIB, self.clock, self.make_bar)

    def make_bar(self, what, total_bytes):
        assert (what, total_bytes) == ("host arena", 64 * GIB)
        self.bars.append(KeptBar() if self.has_bar else None)
        return self.bars[-1]

    def advance(self, gib, seconds):
        self.clock.advance(seconds)
        self.progress.advance(gib * GIB)


def test_what_takes_less_than_two_seconds_is_not_shown(our_log):
    rig = Rig(has_bar=True)
    rig.advance(32, 1.0)
    rig.advance(32, 0.9)
    rig.progress.close()
    assert rig.bars == []
    assert our_log() == []


def test_after_two_seconds_there_is_one_bar_with_all_that_was_done_until_it_is_closed(our_log):
    rig = Rig(has_bar=True)
    for _ in range(4):
        rig.advance(16, 1.5)
    [bar] = rig.bars
    assert bar.moves == [32 * GIB, 48 * GIB, 64 * GIB]
    assert not bar.is_closed
    rig.progress.close()
    rig.progress.close()
    assert bar.is_closed
    assert our_log() == []


def test_without_a_terminal_there_is_a_line_every_five_seconds(our_log):
    rig = Rig(has_bar=False)
    for _ in range(12):
        rig.advance(4, 1.0)
    assert rig.bars == [None]  # asked once
    assert [record.getMessage() for record in our_log()] == [
        "tenuto: host arena: 20.0 of 64.0 GiB after 5 s",
        "tenuto: host arena: 40.0 of 64.0 GiB after 10 s",
    ]
    assert {record.levelno for record in our_log()} == {logging.INFO}


class Terminal:
    def __init__(self, is_terminal):
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


def test_a_log_file_gets_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal=False))
    assert terminal_bar("host arena", GIB) is None


def test_without_rich_there_is_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal=True))
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert terminal_bar("host arena", GIB) is None


def test_a_terminal_gets_richs_bar_and_is_clean_behind_it(monkeypatch):
    terminal = Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = terminal_bar("host arena", 4 * GIB)
    assert bar is not None
    bar.move_to(3 * GIB)
    bar.close()
    assert "host arena" in terminal.text
    assert "3.0/4.0 GiB" in terminal.text
    assert terminal.text.rstrip("\n").endswith("\x1b[2K")  # the line is erased

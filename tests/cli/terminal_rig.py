"""A pseudo-terminal with a command in it, and as much of a terminal as its screen needs."""

import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time

_PATIENCE_S = 20.0
_RUN = """
import json, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored
errors = os.dup(2)
os.login_tty(0)
os.dup2(errors, 2)
from tenuto.cli.main import main
before = termios.tcgetattr(0), signal.getsignal(signal.SIGWINCH), signal.getsignal(signal.SIGTSTP)
code = main(sys.argv[2:])
after = termios.tcgetattr(0), signal.getsignal(signal.SIGWINCH), signal.getsignal(signal.SIGTSTP)
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, "is_restored": before == after}, file)
sys.exit(code)
"""
_SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class Screen:
    """What a terminal shows of what it was sent: only the sequences that we use, and no others."""

    def __init__(self):
        self.lines, self.row, self.column = [], 0, 0
        self.modes = {"?25": True, "?1049": False, "?7": True, "?2026": False}
        self.rest = ""

    def feed(self, text):
        text = self.rest + text
        while text:
            if text[0] == "\x1b":
                found = _SEQUENCE.match(text)
                if found is None:
                    break
                self.obey(*found.groups())
                text = text[found.end() :]
            else:
                self.put(text[0])
                text = text[1:]
        self.rest = text

    def obey(self, number, letter):
        if letter in "hl":
            self.modes[number] = letter == "h"
        elif letter == "H":
            self.row = self.column = 0
        elif letter == "K":
            self.line(self.line()[: self.column])
        elif letter == "J":
            del self.lines[self.row + 1 :]
        else:
            assert letter == "m"

    def put(self, letter):
        if letter == "\n":
            self.row, self.column = self.row + 1, 0
        elif letter != "\r":
            line = self.line().ljust(self.column)
            self.line(line[: self.column] + letter + line[self.column + 1 :])
            self.column += 1

    def line(self, text=None):
        self.lines += [""] * (self.row + 1 - len(self.lines))
        if text is not None:
            self.lines[self.row] = text
        return self.lines[self.row]


class Terminal:
    """Runs `tenuto` with these words, as the leader of a session of the terminal. Use it with ``with``."""

    def __init__(self, folder, *words, width=80, height=24, **environment):
        self.report = folder / "report.json"
        self.screen = Screen()
        self.master, slave = os.openpty()
        self.resize(width, height)
        command = [sys.executable, "-c", _RUN, self.report, *words]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"TERM": "xterm", "PYTHONUTF8": "1"} | environment,
        )  # fmt: skip
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        if self.master >= 0:
            os.close(self.master)

    def resize(self, width, height):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def read(self, timeout_s=0.05):
        """Take in what was sent; False at the end."""
        if select.select([self.master], [], [], timeout_s)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                return False
            self.screen.feed(data.decode("utf-8", "surrogateescape"))
        return True

    def wait(self, is_there):
        """Until the screen is as it is to be, and no frame is half drawn."""
        until = time.monotonic() + _PATIENCE_S
        while self.screen.modes["?2026"] or not is_there(self.screen):
            assert time.monotonic() < until, "\n".join(self.screen.lines)
            assert self.read(), self.process.stderr.read()
        return self.screen

    def shows(self, *texts):
        """Until all these are on the screen."""
        return self.wait(lambda screen: all(text in "\n".join(screen.lines) for text in texts))

    def end(self):
        """(code, whether the terminal is as it was, standard error) when it has ended."""
        until = time.monotonic() + _PATIENCE_S
        while self.read():
            assert time.monotonic() < until, "it does not end"
        error = self.process.communicate(timeout=_PATIENCE_S)[1]
        report = json.loads(self.report.read_text())
        assert report["code"] == self.process.returncode
        is_back = self.screen.modes["?25"] and self.screen.modes["?7"] and not self.screen.modes["?1049"]
        return report["code"], report["is_restored"] and is_back, error

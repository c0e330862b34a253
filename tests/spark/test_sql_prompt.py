"""The prompt of `weir sql` as a person has it: a real terminal, keys in, a screen out."""

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.processes.up import environment

from .conftest import Topics
from .sql_session import make_orders

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

_PATIENCE_S = 300.0
#: What moves a terminal's cursor, colours its text, and so on.
_CODES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][0-9A-B]?)|[\r\x07\x08]")
_CTRL_C, _CTRL_D, _TAB, _UP, _ENTER = "\x03", "\x04", "\t", "\x1b[A", "\r"


class Terminal:
    """A program that thinks that a person sits there."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.screen = ""
        self._pid, self._keys = pty.fork()
        if not self._pid:  # the program, from here on
            # Whoever runs the tests in the background has them ignore interrupts, and that is inherited.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(command[0], command, variables)
        self._over = False

    def type(self, keys: str, *shown: str) -> str:
        """What shows after these keys, once all of that is there, one after the other."""
        self.screen = ""
        os.write(self._keys, keys.encode())
        return self.until(*shown)

    def until(self, *shown: str) -> str:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._shows(shown):
            assert time.monotonic() < deadline, f"{shown} is not in {self.screen}"
            assert self._read(), f"it ended before {shown}: {self.screen}"
        return self.screen

    def _shows(self, shown: tuple[str, ...]) -> bool:
        """Whether all of that is there, one after the other."""
        at = 0
        for text in shown:
            at = self.screen.find(text, at) + len(text)
            if at < len(text):
                return False
        return True

    def ended(self) -> int:
        """Wait for the end of the program; its exit code."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, self.screen
        self._over = True
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def close(self) -> None:
        if not self._over:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._keys)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._keys], [], [], 0.2)
        if ready:
            try:
                found = os.read(self._keys, 65536)
            except OSError:  # the program's end of it is closed
                return False
            self.screen += _CODES.sub("", found.decode(errors="replace"))
            return bool(found)
        return True


@pytest.fixture
def terminals(topics: Topics, tmp_path: Path) -> Iterator["Terminals"]:
    found = Terminals(topics.up.http_url, tmp_path)
    yield found
    for one in found.open:
        one.close()


class Terminals:
    """Sessions of one person on one machine."""

    def __init__(self, url: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "weir.cli.main", "sql", "--url", url, "--master", "local[1]"]
        self._variables = environment() | {
            "XDG_STATE_HOME": str(folder),
            "TERM": "xterm",
            "COLUMNS": "200",
            "LINES": "50",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.open: list[Terminal] = []

    def __call__(self) -> Terminal:
        self.open.append(Terminal([*self._command, "--no-runner", "--from", "earliest"], self._variables))
        return self.open[-1]


def test_a_person_at_the_prompt_completes_interrupts_and_finds_it_all_again(
    topics: Topics, terminals: "Terminals"
) -> None:
    make_orders(topics, "prompt_orders")
    terminal = terminals()
    terminal.until("weir>")
    # Words, topics and columns are completed; a statement goes on until its semicolon.
    terminal.type(f"DESC{_TAB}", "RIBE")
    terminal.type(f" prompt_or{_TAB}", "ders")
    terminal.type(f";{_ENTER}", "amount", "double", "weir>")
    terminal.type(f"SELECT count(*) + 100 AS n{_ENTER}", "...")
    terminal.type(f"FROM prompt_orders o WHERE o.amo{_TAB}", "unt")
    terminal.type(f" > 1;{_ENTER}", "103", "weir>")
    # What is wrong is one line, with what to do.
    lines = terminal.type(f"SELECT * FROM prompt_order;{_ENTER}", "did you mean", "weir>").splitlines()
    assert "there is no topic prompt_order (did you mean prompt_orders?)" in [line.strip() for line in lines]
    wrong = terminal.type(f"SELECT nothing FROM prompt_orders;{_ENTER}", "cannot be resolved", "weir>")
    assert "Traceback" not in wrong
    assert "at org.apache" not in wrong
    # Ctrl-C ends a live query and half a statement, not the session; Ctrl-D does that.
    terminal.type(f"SELECT STREAM id, amount FROM prompt_orders;{_ENTER}", "id | amount", "5 | 2.5")
    terminal.type(_CTRL_C, "weir>")
    terminal.type("SELECT what", "what")
    terminal.type(_CTRL_C, "weir>")
    terminal.type(f"SELECT 41 + 1 AS x;{_ENTER}", "42", "weir>")
    terminal.type(_CTRL_D)
    assert terminal.ended() == 0
    # The next session knows what was typed in this one, and needs no Spark to begin.
    later = terminals()
    later.until("weir>")
    later.type(_UP, "SELECT 41 + 1 AS x;")
    later.type(_CTRL_C, "weir>")
    later.type(f"exit{_ENTER}")
    assert later.ended() == 0

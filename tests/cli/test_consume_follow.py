"""`weir consume --follow` goes on where it was after the broker was killed, and ends cleanly when interrupted."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.processes.up import UpProcess, environment

pytestmark = pytest.mark.process


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path)
    yield process
    process.close()


def weir(up: UpProcess, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "weir.cli.main", *arguments, "--url", up.pulsar_url]
    pipe = subprocess.PIPE
    variables = environment() | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        env=variables,
        text=True,
        preexec_fn=_interruptible,  # noqa: PLW1509 (one call between fork and exec)
    )


def _interruptible() -> None:
    """Whoever runs the tests in the background has them ignore interrupts, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def produce(up: UpProcess, message: str) -> None:
    assert weir(up, "produce", "t", message).wait(120) == 0


@pytest.mark.parametrize("how", [["-s", "s"], []], ids=["subscription", "reader"])
def test_it_follows_through_a_kill(up: UpProcess, how: list[str]) -> None:
    up.start()
    produce(up, "before")
    following = weir(up, "consume", "t", "--follow", *how)
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == "before\n"
        up.kill()
        up.start()
        produce(up, "after")
        lines = [following.stdout.readline()]
        while lines[-1] == "before\n":  # a subscription's acknowledgement may have been lost with the broker
            lines.append(following.stdout.readline())
        assert lines[-1] == "after\n"
        assert lines[:-1] == [] or how
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130
        assert "Traceback" not in following.stderr.read()  # type: ignore[union-attr]
    finally:
        following.kill()
        following.communicate()

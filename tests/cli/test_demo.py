"""The tour that a newcomer runs first tells its story to the end."""

import subprocess
import sys

import pytest


@pytest.mark.process
def test_the_demo_shows_that_nothing_acknowledged_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", "demo"], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    for sentence in (
        "20000 entries",
        "fenced and closed at entry 19999",
        "refused",
        "every entry has its 3",
        "10000 orders",
        "in order per",
    ):
        assert sentence in " ".join(done.stdout.replace("│", " ").split())

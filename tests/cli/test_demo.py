"""The tour that a newcomer runs first tells its story to the end."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.timeout(900)
def test_the_demo_shows_that_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", "demo", "--plot", str(plot)],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for sentence in (
        "20000 entries",
        "fenced and closed at entry 19999",
        "refused",
        "every entry has its 3",
        "10000 orders",
        "in order per",
        "1000 orders by Pulsar's client and 1000 payments by Kafka's",
        "exactly what was paid",
        "the same totals",
        "1000 rows, each order once",
    ):
        assert sentence in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")

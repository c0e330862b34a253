"""The tour that a newcomer runs first tells its story to the end."""

import subprocess
import sys
from pathlib import Path

import pytest

from weir.testing.processes.up import environment


@pytest.mark.process
@pytest.mark.longest
@pytest.mark.timeout(900)
def test_the_demo_shows_that_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    plot = here / "plot.png"
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", "demo", "--plot", str(plot)],
        capture_output=True,
        text=True,
        timeout=880,
        cwd=here,
        env=environment() | {"HOME": str(home), "XDG_STATE_HOME": ""},
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
    assert [path.name for path in here.iterdir()] == ["plot.png"]
    left = [path for path in home.rglob("*") if path.is_file()]
    assert left == [], "the demo leaves nothing behind but a picture"

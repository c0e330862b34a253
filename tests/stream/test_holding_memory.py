"""Many held messages need little memory: a process of its own, with a real bookie in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: `python -m bench.micro_holding` does the same with a million, in about a minute.
MESSAGES = 300_000
#: A million may take 200 MB. What is used here is mostly the bookie's write cache, which is bounded.
GROWTH_MB = 120.0


@pytest.mark.process
def test_hundreds_of_thousands_of_messages_over_thirty_days_are_held_in_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro_holding", str(MESSAGES), "--no-releases", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["messages"] == MESSAGES
    assert result["rss held, MB"] - result["rss before, MB"] < GROWTH_MB
    assert result["rss at the end, MB"] - result["rss before, MB"] < GROWTH_MB

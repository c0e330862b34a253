"""Pulsar's client for Go against a whole Weir."""

import subprocess
import sys
from pathlib import Path

import pytest

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]
_MISSING = 77


def test_a_client_for_go_finds_everything_right(tmp_path: Path) -> None:
    up = UpProcess(tmp_path)
    up.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.pulsar_clients", "--server", up.pulsar_url, "--admin", up.http_url],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        up.close()
    if done.returncode == _MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {line.partition(" ")[2] for line in done.stdout.splitlines()}
    assert {"terminates", "terminated", "bytes beside a schema"} <= steps

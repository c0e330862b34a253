"""A broker whose cluster is not as it should be: no bookies, or another secret than theirs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weir.cli.main import MISUSED
from weir.testing.processes.up import environment

pytestmark = pytest.mark.process

_PATIENCE_S = 120.0
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Processes of `weir`, each with a log of its own; ended at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def one(log: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "weir.cli.main", *arguments]
        with (tmp_path / log).open("ab") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment()))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


def broker(etcd_url: str, secret: Path, *more: str) -> list[str]:
    free = [
        f"--set=listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "amqp", "rocketmq", "http", "peer")
    ]
    return ["broker", *free, f"--set=cluster.meta={etcd_url}", f"--set=cluster.secret=file:{secret}", *more]


def wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.01)


def test_a_broker_says_that_it_has_no_bookies_and_that_its_secret_is_not_theirs(
    etcd_url: str, tmp_path: Path, start: Start
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("o" * 40)
    theirs.write_text("t" * 40)
    ready = tmp_path / "ready.json"

    alone = start("alone.log", *broker(etcd_url, ours, "--set=cluster.name=b1", f"--ready-file={ready}"))
    wait_for(ready, alone)
    doctor = [
        sys.executable,
        "-m",
        "weir.cli.main",
        "doctor",
        "--url",
        f"http://{json.loads(ready.read_text())['http']}",
    ]
    asked = subprocess.run(
        doctor, capture_output=True, text=True, env=environment(), timeout=_PATIENCE_S, check=False
    )
    assert "0 bookies take entries, and a ledger needs 2" in " ".join(asked.stdout.split()), asked
    alone.terminate()
    assert alone.wait(_PATIENCE_S) == 0
    assert (
        "0 bookies take entries, and a ledger needs 2 (start more bookies)" in (tmp_path / "alone.log").read_text()
    )

    served = tmp_path / "bookie.json"
    options = ["--id=k1", f"--data={tmp_path / 'k1'}", "--listen=127.0.0.1:0", f"--meta={etcd_url}"]
    bookie = start(
        "bookie.log", "bookie", "serve", *options, f"--cluster-secret=file:{theirs}", f"--ready-file={served}"
    )
    wait_for(served, bookie)
    stranger = start("stranger.log", *broker(etcd_url, ours, "--set=cluster.name=b2"))
    assert stranger.wait(_PATIENCE_S) == MISUSED
    *_, last = (tmp_path / "stranger.log").read_text().splitlines()
    assert last.startswith("weir: cluster.secret is not the secret of this cluster: bookie k1 at 127.0.0.1:")
    assert "copy the file from a machine of the cluster" in last

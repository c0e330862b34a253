"""The RabbitMQ that Weir is compared with."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench import rabbitmq_peer


def test_a_process_id_that_is_written_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = rabbitmq_peer.RabbitMq(tmp_path)
    steps = [lambda: None, (tmp_path / "pid").touch, lambda: (tmp_path / "pid").write_text("4711")]
    monkeypatch.setattr(rabbitmq_peer, "_SERVER", Path(sys.executable))
    monkeypatch.setattr(subprocess, "Popen", _Running)
    monkeypatch.setattr(peer, "_serves", lambda: True)
    monkeypatch.setattr(rabbitmq_peer.time, "sleep", lambda _: steps.pop(0)())
    peer.start()
    assert peer.wait().pid == 4711
    assert steps == []


class _Running:
    """A process that has started and serves."""

    def __init__(self, *_: object, **__: object) -> None:
        self.pid = 0

    def poll(self) -> None:
        return None

"""SIGHUP: what can change is taken, what cannot is named, what is wrong is said, and nothing dies of it."""

import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.server.serve import ConfigSource, Reloading
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "weir.toml"
    file.write_text('[log]\nlevel = "warning"\n')
    return file


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """As they were."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_the_level_of_the_log_is_taken_and_what_takes_a_restart_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reload = Reloading(ConfigSource(config, ("listeners.kafka=127.0.0.1:1",)))
    config.write_text('[log]\nlevel = "info"\n[listeners]\nhttp = "127.0.0.1:99"\n')
    for level in ("log.level is info now; ", ""):
        reload()
        assert logging.getLogger().level == logging.INFO
        assert f"SIGHUP: {level}listeners.http changed, which takes a restart" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_read_changes_nothing(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reload = Reloading(ConfigSource(config))
    config.write_text('[log]\nlevel = "loud"\n')
    reload()
    assert "the configuration cannot be used, and stays as it was" in caplog.messages[-1]
    assert "log.level" in caplog.messages[-1]


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """Processes that are started hear SIGHUP, also below a `nohup`, of which they would learn to ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.process
@pytest.mark.usefixtures("hang_ups")
def test_a_running_weir_says_what_it_reloaded_and_goes_on(tmp_path: Path, config: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    old, new = make_certificate(tmp_path / "one"), make_certificate(tmp_path / "two")
    up = UpProcess(
        tmp_path, f"tls.certificate={old.file}", f"tls.key={old.key_file}", "listeners.https=127.0.0.1:0"
    )
    up.options = ("--config", str(config))
    up.start()
    try:
        config.write_text('[log]\nlevel = "info"\n')
        old.file.write_bytes(new.file.read_bytes())
        old.key_file.write_bytes(new.key_file.read_bytes())
        os.kill(up.pid, signal.SIGHUP)
        up.wait_said("SIGHUP:")
        (said,) = re.findall(r"SIGHUP: .*", up.log)
        assert "log.level is info now" in said
        assert f"the TLS files {old.file} are new" in said
        os.kill(up.pid, signal.SIGHUP)
        up.wait_said("nothing has changed")
        assert up.stop() == 0
    finally:
        up.close()

"""`weir up` for Kafka's own clients."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from weir.testing.up import UpProcess


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` for all tests of a module."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="module")
def bootstrap(weir: UpProcess) -> str:
    """What Kafka's clients are told to begin with."""
    return weir.kafka


@pytest.fixture
def start_weir(tmp_path: Path) -> Iterator[Callable[..., UpProcess]]:
    """Starts a `weir up` for one test alone, with settings as for `--set`."""
    started: list[UpProcess] = []

    def start(*settings: str) -> UpProcess:
        folder = tmp_path / f"weir{len(started)}"
        folder.mkdir()
        up = UpProcess(folder, *settings)
        started.append(up)
        return up.start()

    yield start
    for up in started:
        up.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"t-{uuid4().hex}"

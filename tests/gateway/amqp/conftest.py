"""`weir up` for RabbitMQ's own clients."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from weir.testing.processes.up import UpProcess

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` for all tests of a module."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="module")
def amqp(request: pytest.FixtureRequest) -> str:
    """Where AMQP is spoken: `host:port`. `AMQP_JUDGED` names another broker, to judge the judges by RabbitMQ."""
    if other := os.environ.get("AMQP_JUDGED"):
        return other
    up: UpProcess = request.getfixturevalue("weir")
    return up.amqp


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n-{uuid4().hex}"


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for something, however slow the machine is; not for ever."""

    def wait(true: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := true()):
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.005)
        return found

    return wait

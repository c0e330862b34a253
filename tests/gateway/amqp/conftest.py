"""`weir up` for RabbitMQ's own clients."""

from collections.abc import Iterator

import pytest

from weir.testing.processes.up import UpProcess


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One `weir up` for all tests of a module."""
    up = UpProcess(tmp_path_factory.mktemp("weir"))
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="module")
def amqp(weir: UpProcess) -> str:
    """Where AMQP is spoken: `host:port`."""
    if "amqp" not in weir.addresses:
        pytest.skip("there is no listener for AMQP yet")
    return weir.addresses["amqp"]

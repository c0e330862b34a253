"""Three brokers of one cluster, for the official client and REST to talk to."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest

from weir.broker.cluster.registration import OwnershipSettings
from weir.testing.many_brokers import ManyBrokers

NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def brokers(request: pytest.FixtureRequest) -> Iterator[ManyBrokers]:
    """By the names that the module gives them, if it does: who has which bundle goes by these."""
    names = getattr(request.module, "NAMES", NAMES)
    # Nobody dies here: a slow machine must not end leases, or bundles go where no test has sent them.
    many = ManyBrokers(*names, spread=True, ownership=OwnershipSettings(ttl_s=60.0, retry_s=0.05)).start()
    yield many
    many.stop()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., pulsar.Client]]:
    """Makes clients, and closes them."""
    clients: list[pulsar.Client] = []

    def make(url: str, **options: Any) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        clients.append(pulsar.Client(url, operation_timeout_seconds=60, logger=quiet, **options))
        return clients[-1]

    yield make
    for client in clients:
        with suppress(pulsar.AlreadyClosed):
            client.close()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, and the same in every run: the broker of a topic goes by it."""
    return request.node.name.replace("[", "-").replace("]", "")

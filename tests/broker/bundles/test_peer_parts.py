"""Parts of a topic that other brokers have."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.bundles.conftest import TTL_S, Cluster

from weir.broker.api.broker import Owner
from weir.broker.cluster.topic_calls import PeerParts
from weir.broker.peers.peer_calls import PeerHandlers
from weir.model.errors import NotAllowedError, NotOwnerError, PeerUnavailableError, WeirError
from weir.model.topics import TopicName
from weir.wire.peer.calls import Done

PART = TopicName.parse("t").at(0)


class Owners:
    """Brokers that fail one after the other; the last one answers."""

    def __init__(self, *failures: WeirError) -> None:
        self._left = list(failures)
        self.asked: list[str] = []

    def owner_now(self, name: TopicName) -> Owner:
        return Owner(False, {}, f"broker-{len(self.asked)}")

    async def check_unused(self, part: TopicName) -> None: ...

    async def erase(self, part: TopicName) -> None: ...

    async def ask(self, broker_id: str, request: Any, *, timeout_s: float | None = None) -> Any:
        self.asked.append(broker_id)
        if self._left:
            raise self._left.pop(0)
        return Done()


def test_an_owner_that_dies_while_it_deletes_is_followed_by_the_next(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        gone = [PeerUnavailableError("it closed the connection", sent=True) for _ in range(int(TTL_S / 0.2))]
        owners = Owners(*gone, NotOwnerError("not yet"))
        parts = PeerParts(cluster.runtime.clock, owners, PeerHandlers(), owners)
        await parts.erase(PART)
        assert len(owners.asked) == len(gone) + 2
        assert owners.asked[-1] == f"broker-{len(gone) + 1}"

    in_cluster(scenario)


def test_what_an_owner_refuses_is_not_asked_again(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        owners = Owners(NotAllowedError("it has producers"))
        parts = PeerParts(cluster.runtime.clock, owners, PeerHandlers(), owners)
        with pytest.raises(NotAllowedError):
            await parts.check_unused(PART)
        assert len(owners.asked) == 1

    in_cluster(scenario)

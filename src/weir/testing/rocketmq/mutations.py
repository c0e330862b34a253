"""Promises to RocketMQ's clients broken on purpose: each mutation patches one seam of the gateway."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.broker.api.producers import Receipt
from weir.gateway.rocketmq.group_topic import GroupTopic, Link
from weir.gateway.rocketmq.handlers import send as sending
from weir.gateway.rocketmq.publisher import Publishing
from weir.model.errors import TopicClosedError
from weir.testing.mutation import Mutations, often
from weir.testing.rocketmq import checkers
from weir.testing.storage.plan import Fault

ROCKETMQ_MUTATIONS = Mutations()
_mutation = ROCKETMQ_MUTATIONS.add
_CRASHES = {"storage": often(Fault.CRASH_CLIENT), "moves": False}


@_mutation("confirmed-before-stored", checkers.nothing_is_lost, **_CRASHES, halves=0.0, messages=40)
def _confirmed_before_stored() -> Iterator[None]:
    """A send is answered when its messages are on their way."""
    publish = Publishing._publish

    def early(self: Publishing, producer: Any, outgoing: Any, wanting: Any) -> None:
        for before, stored in wanting:
            stored(Receipt(0, (0, 0)), before)
        publish(self, producer, outgoing, [])

    with patch.object(Publishing, "_publish", early):
        yield


@_mutation("acknowledged-here-only", checkers.acknowledged_comes_no_more, **_CRASHES)
def _acknowledged_here_only() -> Iterator[None]:
    """An acknowledged message is nobody's any more, but its subscription does not know."""

    def forgotten(self: Link, offset: int) -> None:
        self.pending.pop(offset, None)

    with patch.object(Link, "ack", forgotten):
        yield


@_mutation("halves-are-wholes", checkers.halves_are_seen_when_committed, halves=0.6)
def _halves_are_wholes() -> Iterator[None]:
    """A half message is stored like any other."""

    def whole(*args: Any) -> None:
        return None

    with patch.object(sending, "_alone", whole):
        yield


@_mutation("subscribed-once", checkers.all_is_available, **_CRASHES)
def _subscribed_once() -> Iterator[None]:
    """A group that was there before is not served after a restart."""
    subscribe = GroupTopic._subscribe

    async def refused(self: GroupTopic, role: str, number: int, name: Any) -> None:
        topic = await self._broker.topic(name, role=role)
        if topic.stored is not None and topic.stored.subscriptions.get(self.group) is not None:
            raise TopicClosedError("somebody has it")
        await subscribe(self, role, number, name)

    with patch.object(GroupTopic, "_subscribe", refused):
        yield

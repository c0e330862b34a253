"""Deletion of topics: mark the record, delete every partition on the broker that owns it, delete the record.

The deletion of a stream includes every ledger that the stream or its state names.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.broker.context import BrokerContext
from weir.broker.ports import Ownership, PartsElsewhere, Registry
from weir.broker.standalone import NothingElsewhere
from weir.broker.topics.topic import stream_name
from weir.broker.topics.topic_overviews import Overviews
from weir.model.errors import (
    LedgerNotFoundError,
    NotOwnerError,
    StreamNotFoundError,
    TopicClosedError,
    TopicNotFoundError,
)
from weir.model.ids import LedgerId
from weir.model.queues import QUEUE_PROPERTY
from weir.model.topics import TopicName
from weir.runtime.tasks import log_about
from weir.stream import carried, compaction, key_index
from weir.stream.context import StreamContext
from weir.stream.holding import ledger as holding_ledger
from weir.stream.log import Stream


async def erase(context: StreamContext, name: str, *, confirm: Callable[[], Awaitable[None]]) -> None:
    """Take the stream over and delete it; does nothing if the stream does not exist.

    `confirm` runs after the takeover, and raises if the stream must stay. That order makes a late deletion safe:
    either `confirm` sees a new stream of the same name, or that stream was created after `confirm`; its owner has
    then fenced this broker, which deletes nothing (StreamFencedError)."""
    try:
        stream = await Stream.open(context, name)
    except StreamNotFoundError:
        return
    try:
        also = await _named_by_the_state(stream)
        await confirm()
        await stream.delete(also)
    finally:
        await stream.close()


async def _named_by_the_state(stream: Stream) -> tuple[LedgerId, ...]:
    try:
        state = await stream.open_state()
    except LedgerNotFoundError:
        return ()  # without the state, its ledgers are unknown
    try:
        return (
            *holding_ledger.ledgers_in(state),
            *compaction.ledgers_in(state),
            *carried.ledgers_in(state),
            *key_index.ledgers_in(state),
        )
    finally:
        await state.close()


log = logging.getLogger(__name__)

#: How long a broker that shuts down waits for running deletions.
_GRACE_S = 5.0


class ServedParts(Protocol):
    """The partitions that this broker serves, as a deletion needs them."""

    async def check_unused(self, part: TopicName) -> None:
        """NotAllowedError if the topic has producers or consumers; NotOwnerError if another broker owns it."""

    async def put_down(self, part: TopicName) -> None:
        """Close the topic if this broker serves it."""


class Deletions:
    """Topic deletions that this broker runs."""

    def __init__(
        self, context: BrokerContext, registry: Registry, ownership: Ownership, served: ServedParts
    ) -> None:
        #: Runs the steps of a deletion on other brokers.
        self.elsewhere: PartsElsewhere = NothingElsewhere()
        self._context = context
        self._registry = registry
        self._ownership = ownership
        self._served = served
        #: Key: topic without partition. The broker loads no partition of a topic while its deletion runs.
        self.under_way: dict[TopicName, asyncio.Task[None]] = {}
        self._closing = False

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic with all of its partitions and messages. NotAllowedError if it has producers or
        consumers, unless forced."""
        while True:
            record = await self._registry.ensure_topic(name, create=False)
            if record.name in self.under_way:  # another request deletes it; the name is another topic after that
                await asyncio.wait([self.under_way[record.name]])
                continue
            if record.deleting:
                return await self.finish(record.name)
            if not force:
                for part in record.parts():
                    await self._check_unused(part)
            if record.name not in self.under_way:
                return await self._deleted(record.name)

    async def finish(self, base: TopicName) -> None:
        """Finish an interrupted deletion, or wait for the task that finishes it already."""
        await self._deleted(base, again=True)

    async def erase(self, part: TopicName) -> None:
        """Close a partition of a topic in deletion, and delete its data; NotOwnerError if another broker owns it.
        No broker loads the partition any more: a broker reads the topic's record after it acquires the
        partition."""
        await self._ownership.own(part)
        await self._still_doomed(part.base)
        await self._served.put_down(part)
        if part.persistent:
            await erase(self._context.streams, stream_name(part), confirm=lambda: self._still_doomed(part.base))
            await Overviews(self._context.streams).forget(part)

    async def close(self) -> None:
        """Interrupt deletions after a grace period. The marks stay: the next request for the topic finishes its
        deletion."""
        self._closing = True
        if self.under_way:
            _, late = await asyncio.wait(self.under_way.values(), timeout=_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _check_unused(self, part: TopicName) -> None:
        try:
            await self._served.check_unused(part)
        except NotOwnerError:
            await self.elsewhere.check_unused(part)

    async def _deleted(self, base: TopicName, *, again: bool = False) -> None:
        if self._closing:
            raise TopicClosedError("the broker is shutting down")
        deleting = self.under_way.get(base)
        if deleting is None:
            deleting = asyncio.get_running_loop().create_task(self._delete(base, again), name=f"delete {base}")
            self.under_way[base] = deleting
            deleting.add_done_callback(lambda done: self._ended(base, done))
        # A caller that stops waiting must not interrupt the deletion.
        await asyncio.shield(deleting)

    def _ended(self, base: TopicName, done: "asyncio.Task[None]") -> None:
        del self.under_way[base]
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.warning("deletion of %s failed (the next request for the topic repeats it): %s", base, failure)

    async def _delete(self, base: TopicName, again: bool) -> None:
        """Mark the record first: after a crash, no broker serves the rest of the topic. Delete the record last:
        until then a broker can find and finish the deletion."""
        log_about(topic=str(base))
        doomed = await (self._registry.confirm_topic(base) if again else self._registry.doom_topic(base))
        if doomed is None:
            raise TopicClosedError(f"{base} was deleted just now", hint="try again")
        if not doomed.deleting:
            return  # another broker finished the deletion, and the topic was created again
        for part in doomed.parts():
            await self._served.put_down(part)
        for part in doomed.parts():
            try:
                await self.erase(part)
            except NotOwnerError:
                await self.elsewhere.erase(part)
        await self._still_doomed(base)
        if QUEUE_PROPERTY in doomed.properties:
            await self._context.queue_deleted(base)
        await self._context.schemas.purge(base)
        await self._registry.forget_topic(doomed)

    async def _still_doomed(self, base: TopicName) -> None:
        """TopicNotFoundError if another broker finished the deletion: the name may be a new topic's by now."""
        record = await self._registry.confirm_topic(base)
        if record is None or not record.deleting:
            raise TopicNotFoundError(f"{base} was deleted by another broker")

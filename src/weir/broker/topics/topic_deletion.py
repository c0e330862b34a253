"""Deleting topics as a whole: marked first, then every part wherever it is served, the record last.

Deleting a stream by its name, with every ledger that it or its state names.
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
    """Take the stream over and delete it; fine if it is gone.

    `confirm` is asked once the stream is held, and raises if it must stay. That order makes it safe for whoever is
    late: a stream made anew under the name is either seen by `confirm`, or made after it, and then this holder is
    fenced and deletes nothing (StreamFencedError)."""
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
        return ()  # nothing can be known of them any more
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

#: How long a broker that goes down waits for topics that are being deleted.
_GRACE_S = 5.0


class ServedParts(Protocol):
    """What this broker serves, as far as a deletion has to do with it."""

    async def check_unused(self, part: TopicName) -> None:
        """NotAllowedError if somebody is connected to the topic; NotOwnerError if it is another broker's."""

    async def put_down(self, part: TopicName) -> None:
        """Close a topic that is served here."""


class Deletions:
    """Those that this broker does."""

    def __init__(
        self, context: BrokerContext, registry: Registry, ownership: Ownership, served: ServedParts
    ) -> None:
        #: Asked for what a deletion needs of other brokers.
        self.elsewhere: PartsElsewhere = NothingElsewhere()
        self._context = context
        self._registry = registry
        self._ownership = ownership
        self._served = served
        #: Topics as a whole: nothing of one is loaded before that is over.
        self.under_way: dict[TopicName, asyncio.Task[None]] = {}
        self._closing = False

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """End a topic with all of its partitions and everything in them. Those that are connected are a reason not
        to, unless forced (NotAllowedError)."""
        while True:
            record = await self._registry.ensure_topic(name, create=False)
            if record.name in self.under_way:  # by somebody else; what has the name then is another topic
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
        """Delete what is left of a topic whose deletion was cut short; or wait for whoever does so already."""
        await self._deleted(base, again=True)

    async def erase(self, part: TopicName) -> None:
        """Close a part of a topic that is being deleted, and delete what it holds; NotOwnerError if it is another
        broker's. Nothing of it is loaded any more: whoever does so looks at its record when it has the part."""
        await self._ownership.own(part)
        await self._still_doomed(part.base)
        await self._served.put_down(part)
        if part.persistent:
            await erase(self._context.streams, stream_name(part), confirm=lambda: self._still_doomed(part.base))
            await Overviews(self._context.streams).forget(part)

    async def close(self) -> None:
        """One that takes too long is cut short; its mark stays, and whoever asks for the topic goes on with it."""
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
            raise TopicClosedError("the broker is going down")
        deleting = self.under_way.get(base)
        if deleting is None:
            deleting = asyncio.get_running_loop().create_task(self._delete(base, again), name=f"delete {base}")
            self.under_way[base] = deleting
            deleting.add_done_callback(lambda done: self._ended(base, done))
        # Whoever gives up waiting must not leave half of a topic behind.
        await asyncio.shield(deleting)

    def _ended(self, base: TopicName, done: "asyncio.Task[None]") -> None:
        del self.under_way[base]
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.warning("%s is not deleted yet: %s", base, failure)

    async def _delete(self, base: TopicName, again: bool) -> None:
        """The mark first, so that what is left after a crash is served to nobody; the record last, so that it can
        be found and deleted again."""
        log_about(topic=str(base))
        doomed = await (self._registry.confirm_topic(base) if again else self._registry.doom_topic(base))
        if doomed is None:
            raise TopicClosedError(f"{base} was deleted just now", hint="try again")
        if not doomed.deleting:
            return  # ended by another broker, and made anew
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
        """Another broker may have ended the deletion, and the name may be another topic's by now."""
        record = await self._registry.confirm_topic(base)
        if record is None or not record.deleting:
            raise TopicNotFoundError(f"{base} was deleted by another broker")

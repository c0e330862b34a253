"""Administration of the dead letters in a topic: list them, and redrive them to their topics of origin."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pyroaring import BitMap64

from weir.broker.api.consumers import StartAt
from weir.broker.api.topics import LetterFilter, LetterPage, Redriven, StoredLetter
from weir.broker.dead_letters.letters import Destination
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.filters.message_filter import CompiledFilter, compiled, head_of
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.subscriptions.in_flight import runs_in
from weir.broker.subscriptions.subscription import Subscription
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import SubscriptionBusyError, SubscriptionNotFoundError, TopicClosedError
from weir.model.messages import NAMES, Death, Message, death_in
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.subscriptions import MessageFilter
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import Turns
from weir.stream.cursor import Cursor
from weir.wire.amqp.dead_letter import Reason
from weir.wire.formats.table import opening

_READ_BYTES = 1024 * 1024
#: Letters that one call scans at most; the next call continues.
_LOOKED_AT = 5_000


#: The subscription in which consoles of earlier releases stored the redrive position.
_FORMER_CURSOR = "weir-redrive"


class LetterSubscriptions(Protocol):
    """The subscriptions of a dead letter topic, as redrive uses them."""

    by_name: dict[str, Subscription]

    @property
    def source(self) -> ReadCommittedLog: ...

    def get(self, name: str) -> Subscription: ...

    async def create(self, name: str, start: StartAt) -> Subscription: ...


class DeadLetterRedrive:
    """Fills `api.DeadLetterBox`. `alive`: whether this broker still serves the topic."""

    def __init__(
        self,
        topic: TopicName,
        subscriptions: LetterSubscriptions,
        outbox: Callable[[], DeadLetters],
        alive: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._topic = topic
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._alive = alive
        self._turns = Turns(clock)

    @property
    def _subscription(self) -> Subscription | None:
        try:
            return self._subscriptions.get(QUEUE_SUBSCRIPTION)
        except SubscriptionNotFoundError:
            return None

    @property
    def _acked(self) -> Cursor:
        """The cursor: acknowledged letters do not wait any more."""
        found = self._subscription or self._subscriptions.by_name.get(_FORMER_CURSOR)
        return Cursor() if found is None else found.cursor

    async def _ensure_subscription(self) -> Subscription:
        """Create the subscription that retains the topic's letters until they are redriven."""
        found = self._subscription
        if found is not None:
            return found
        start = self._acked.mark_delete + 1
        return await self._subscriptions.create(QUEUE_SUBSCRIPTION, StartAt(offset=start or None))

    @property
    def waiting(self) -> int:
        source = self._subscriptions.source
        found = self._subscription
        if found is not None:
            return found.backlog
        return max(0, source.end_offset - max(source.start_offset, self._acked.mark_delete + 1))

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        condition = compiled(MessageFilter(wanted.sql)) if wanted.sql.strip() else None
        source, cursor = self._subscriptions.source, self._acked
        end = source.end_offset if wanted.before is None else min(wanted.before, source.end_offset)
        found: list[StoredLetter] = []
        looked_at, offset = 0, start
        while len(found) < most and looked_at < _LOOKED_AT:
            offset = max(cursor.next_unacked(offset), source.start_offset)
            if offset >= end or not (batches := await source.read(offset, _READ_BYTES)):
                return LetterPage(found, None, looked_at, end)
            for batch in batches:
                for letter in await self._letters(batch, offset, end, cursor):
                    if len(found) == most:
                        return LetterPage(found, letter.offset, looked_at, end)
                    looked_at += 1
                    if _is_meant(letter, wanted, condition):
                        found.append(letter)
                offset = max(offset, batch.end_offset)
        return LetterPage(found, offset, looked_at, end)

    async def _letters(self, batch: Batch, first: int, end: int, cursor: Cursor) -> list[StoredLetter]:
        """The unacknowledged letters of a batch in this range of offsets."""
        if batch.flags & BatchFlags.UNSEEN:
            return []
        messages = await self._turns.through(opening(batch))
        if len(messages) != batch.count:
            return []
        visible = self._subscriptions.source.visible(batch)
        bits = cursor.unacked_mask(batch.base_offset, batch.count)
        bits = bits if visible is None else bits & visible
        return [
            StoredLetter(batch.base_offset + index, message, self._death(message))
            for index, message in enumerate(messages)
            if bits >> index & 1 and first <= batch.base_offset + index < end
        ]

    def _death(self, message: Message) -> Death | None:
        """The letter's death; the topic's name (`<topic>-<subscription>-DLQ`) completes missing headers."""
        death = death_in(message.headers)
        if death is None or death.offset is not None:
            return death
        subscription, prefix, local = death.subscription, f"{death.topic.local}-", self._topic.local
        if not subscription and local.startswith(prefix) and local.endswith("-DLQ"):
            subscription = local[len(prefix) :].removesuffix("-DLQ")
        return replace(death, subscription=subscription, died_ms=message.publish_ms)

    async def redrive(
        self,
        wanted: LetterFilter,
        *,
        start: int,
        most: int,
        check: Callable[[TopicName], None] | None = None,
        to: Callable[[Message], TopicName] | None = None,
    ) -> Redriven:
        page = await self.page(wanted, start=start, most=most)
        going: dict[TopicName, BitMap64] = {}
        for letter in page.letters:
            if to is not None:
                going.setdefault(to(letter.message), BitMap64()).add(letter.offset)
            elif letter.death is not None:
                going.setdefault(letter.death.topic, BitMap64()).add(letter.offset)
        for target in going:
            if check is not None:
                check(target)
        if not going:
            return Redriven(0, len(page.letters), page.next, page.looked_at, page.end)
        subscription = await self._ensure_subscription()
        meant = BitMap64.union(*going.values())
        dispatcher = subscription.per_message()
        if dispatcher is None:
            raise SubscriptionBusyError(
                f"subscription {QUEUE_SUBSCRIPTION!r} has an exclusive or failover consumer"
            )
        outbox = self._outbox()
        taken = dispatcher.set_aside(None, list(runs_in(meant))) - outbox.offsets
        subscription.failing.tell_given_up(taken, Reason.REDRIVEN)
        if to is None:
            outbox.take(taken, Reason.REDRIVEN, Destination())
        else:
            for target, offsets in going.items():
                outbox.take(taken & offsets, Reason.REDRIVEN, Destination(back_to=str(target)))
        while taken & outbox.offsets:
            if not self._alive():
                raise TopicClosedError(
                    "this broker does not serve the topic any more", hint="repeat the request: no letter is lost"
                )
            await outbox.arrived.wait()
        await subscription.persisted()
        moved = len(taken) - len(subscription.cursor.unacked_of(taken))
        return Redriven(moved, len(page.letters) - moved, page.next, page.looked_at, page.end)


def _is_meant(letter: StoredLetter, wanted: LetterFilter, condition: CompiledFilter | None) -> bool:
    message, death = letter.message, letter.death
    if wanted.topic is not None and (
        death is None
        or death.topic.base != wanted.topic.base
        or wanted.topic.partition not in (None, death.topic.partition)
    ):
        return False
    died_ms = 0 if death is None else death.died_ms
    return (
        (wanted.subscription is None or (death is not None and death.subscription == wanted.subscription))
        and (wanted.reason is None or (death is not None and death.reason == wanted.reason))
        and (wanted.key is None or message.key == wanted.key)
        and (wanted.since_ms is None or died_ms >= wanted.since_ms)
        and (wanted.until_ms is None or died_ms < wanted.until_ms)
        and _has(message, wanted)
        and (condition is None or condition.takes(head_of((message.key, _condition_headers(message)))))
    )


def _has(message: Message, wanted: LetterFilter) -> bool:
    if not wanted.properties:
        return True
    said = dict(message.headers)
    return all(said.get(name) == text.encode() for name, text in wanted.properties.items())


def _condition_headers(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers, also under names that are valid in a condition: `weir_dead_reason` for `weir-dead-reason`."""
    told = [(name.replace("-", "_"), value) for name, value in message.headers if name in NAMES]
    return [*message.headers, *told]

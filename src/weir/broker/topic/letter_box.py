"""Dead letters that wait in a topic, for administrators: listed, and put back where they came from."""

from collections.abc import Callable

from pyroaring import BitMap64

from weir.broker.api import LetterFilter, LetterPage, Redriven, StoredLetter
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.dead_letters.parcels import Destination
from weir.broker.dispatch.offsets import runs_in
from weir.broker.dispatch.subscription import Subscription
from weir.broker.filters.compiled import CompiledFilter, compiled
from weir.broker.filters.masks import head_of
from weir.broker.topic.subscriptions import Subscriptions
from weir.model.batch import Batch, BatchFlags
from weir.model.dead_letters import NAMES, death_in
from weir.model.errors import SubscriptionBusyError, SubscriptionNotFoundError, TopicClosedError
from weir.model.filters import MessageFilter
from weir.model.message import Message
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.turns import Turns
from weir.wire.amqp.death import Reason
from weir.wire.formats import opening

_READ_BYTES = 1024 * 1024
#: What one call looks at, at the most; the rest is for the next.
_LOOKED_AT = 5_000


class LetterBox:
    """Fills `api.DeadLetterBox`. `alive`: whether the topic is served here still."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        outbox: Callable[[], DeadLetters],
        alive: Callable[[], bool],
        clock: Clock,
    ) -> None:
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
    def waiting(self) -> int:
        found = self._subscription
        return 0 if found is None else found.backlog

    async def page(self, wanted: LetterFilter, *, start: int, most: int) -> LetterPage:
        condition = compiled(MessageFilter(wanted.sql)) if wanted.sql.strip() else None
        subscription = self._subscription
        if subscription is None:
            return LetterPage((), None, 0)
        source, cursor = subscription.source, subscription.cursor
        found: list[StoredLetter] = []
        looked_at, offset = 0, start
        while len(found) < most and looked_at < _LOOKED_AT:
            offset = max(cursor.next_unacked(offset), source.start_offset)
            if offset >= source.end_offset or not (batches := await source.read(offset, _READ_BYTES)):
                return LetterPage(found, None, looked_at)
            for batch in batches:
                for letter in await self._letters(batch, offset, subscription):
                    if len(found) == most:
                        return LetterPage(found, letter.offset, looked_at)
                    looked_at += 1
                    if _is_meant(letter, wanted, condition):
                        found.append(letter)
                offset = max(offset, batch.end_offset)
        return LetterPage(found, offset, looked_at)

    async def _letters(self, batch: Batch, first: int, subscription: Subscription) -> list[StoredLetter]:
        """Those of a batch that are not acknowledged, from the offset on."""
        if batch.flags & BatchFlags.UNSEEN:
            return []
        messages = await self._turns.through(opening(batch))
        if len(messages) != batch.count:
            return []
        visible = subscription.source.visible(batch)
        bits = subscription.cursor.unacked_mask(batch.base_offset, batch.count)
        bits = bits if visible is None else bits & visible
        return [
            StoredLetter(batch.base_offset + index, message, death_in(message.headers))
            for index, message in enumerate(messages)
            if bits >> index & 1 and batch.base_offset + index >= first
        ]

    async def redrive(
        self, wanted: LetterFilter, *, start: int, most: int, check: Callable[[TopicName], None] | None = None
    ) -> Redriven:
        page = await self.page(wanted, start=start, most=most)
        for origin in dict.fromkeys(letter.death.topic for letter in page.letters if letter.death is not None):
            if check is not None:
                check(origin)
        subscription = self._subscription
        meant = BitMap64([letter.offset for letter in page.letters if letter.death is not None])
        if subscription is None or not meant:
            return Redriven(0, len(page.letters), page.next, page.looked_at)
        dispatcher = subscription.per_message()
        if dispatcher is None:
            raise SubscriptionBusyError(
                f"subscription {QUEUE_SUBSCRIPTION!r} has a consumer that takes all in order"
            )
        outbox = self._outbox()
        taken = dispatcher.set_aside(None, list(runs_in(meant))) - outbox.offsets
        subscription.failing.tell_given_up(taken, Reason.REDRIVEN)
        outbox.take(taken, Reason.REDRIVEN, Destination())
        while taken & outbox.offsets:
            if not self._alive():
                raise TopicClosedError(
                    "the topic is not served here any more", hint="begin again: nothing is lost"
                )
            await outbox.arrived.wait()
        await subscription.persisted()
        moved = len(taken) - len(subscription.cursor.unacked_of(taken))
        return Redriven(moved, len(page.letters) - moved, page.next, page.looked_at)


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
        and (condition is None or condition.takes(head_of((message.key, _own(message)))))
    )


def _has(message: Message, wanted: LetterFilter) -> bool:
    if not wanted.properties:
        return True
    said = dict(message.headers)
    return all(said.get(name) == text.encode() for name, text in wanted.properties.items())


def _own(message: Message) -> list[tuple[str, bytes | None]]:
    """Its headers under names that a condition can say: `weir_dead_reason` for `weir-dead-reason`, too."""
    told = [(name.replace("-", "_"), value) for name, value in message.headers if name in NAMES]
    return [*message.headers, *told]

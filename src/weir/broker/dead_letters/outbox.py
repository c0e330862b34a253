"""Outbox of dead letters: sends given-up messages to an exchange or a topic, and then acknowledges them.

The outbox selects and routes messages and, if the log is durable, stores the parcel in its state before it sends
anything: after a crash it sends the same letters to the same queues, which deduplicate the parcel. So a dead
letter exists once, and the broker never delivers its message again (docs/adr/0030). Redrive to the topic of origin
works in the same way.

`TopicDeadLetters` has an outbox per subscription with dead letters, and selects the destination.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from weir.broker.api.queues import NamespaceExchanges, Queue, QueueMessages
from weir.broker.context import BrokerContext
from weir.broker.dead_letters.letters import (
    FIRST_ID,
    ID_BITS,
    PARCEL_KEY,
    DeadLetterBatch,
    Deaths,
    Destination,
    Letter,
    LetterMaker,
    Origin,
    Sent,
    parcel_key,
)
from weir.broker.log.log_feed import Source
from weir.broker.ports import LetterRoutes
from weir.broker.subscriptions.in_flight import runs_in
from weir.broker.subscriptions.subscription import Subscription
from weir.model.batch import Run, Stamp
from weir.model.errors import (
    ExchangeNotFoundError,
    InvalidNameError,
    NotAuthorisedError,
    QueueNotFoundError,
    StreamClosedError,
    StreamFencedError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueRules, queue_of_topic
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope, Turns
from weir.runtime.waiters import Waiters
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.amqp.dead_letter import Reason
from weir.wire.formats.messages import decode_messages, encode_message, join_messages

log = logging.getLogger(__name__)

#: Letters per parcel: few enough for one entry and a small record, many enough to share the cost of two waits.
_MOST_LETTERS = 500
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class ParcelStore(Protocol):
    """The part of `weir.stream.state_log.StateLog` that the outbox uses."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    async def flush(self) -> None: ...


class Outlets(NamedTuple):
    """Actions of the subscription on given-up messages. `settle`: acknowledge them. `give_back`: make them ready
    again. `deliveries_of`: the delivery count of one."""

    settle: Callable[[Sequence[Run]], None]
    give_back: Callable[[BitMap64], None]
    deliveries_of: Callable[[int], int]


class DeadLetters:
    """The outbox of one subscription. `store`: None if the subscription does not survive its broker."""

    def __init__(
        self,
        origin: Origin,
        source: Source,
        routes: LetterRoutes,
        *,
        outlets: Outlets,
        store: ParcelStore | None,
        runtime: Runtime,
        tasks: TaskScope,
    ) -> None:
        self._said = origin.queue
        self._key = parcel_key(origin.subscription)
        self._maker = LetterMaker(origin, source, runtime.clock)
        self._routes = routes
        self._outlets = outlets
        self._store = store
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._turns = Turns(runtime.clock)
        self._tasks = tasks
        self._waiting: deque[Deaths] = deque()
        #: Messages that were given up and are not acknowledged yet.
        self._offsets = BitMap64()
        self._dropped = BitMap64()
        self._sent: Sent | None = None
        self._worker: asyncio.Task[None] | None = None
        #: Woken when a parcel has arrived, or when messages have left the outbox in another way.
        self.arrived = Waiters()
        #: Counters of messages that became letters, and of messages that were dropped without a destination.
        self.moved = 0
        self.dropped = 0
        self._load()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        """Whether the message was given up, and must not be delivered."""
        return offset in self._offsets

    @property
    def offsets(self) -> BitMap64:
        return self._offsets

    def _load(self) -> None:
        """Load the parcel that the previous broker had not finished; it is sent first."""
        data = None if self._store is None else self._store.get(self._key)
        if data is None:
            return
        try:
            self._sent = Sent.decode(data)
        except WireError as bad:
            log.error("%s: the record of pending dead letters cannot be read: %s", self._said, bad)
            return
        if self._sent.parcel is not None:
            for runs in self._sent.parcel.targets.values():
                for first, end in runs:
                    self._offsets.add_range(first, end)
            self._wake()

    def take(self, offsets: BitMap64, reason: Reason, to: Destination | None) -> None:
        """Accept given-up messages; they are aside, or will be when the caller returns. `to`: None to drop
        them."""
        offsets = offsets - self._offsets
        if not offsets:
            return
        self._offsets |= offsets
        if to is None:
            if not self._dropped:
                asyncio.get_running_loop().call_soon(self._drop)
            self._dropped |= offsets
            return
        deaths = Deaths(offsets, reason, to, self._clock.wall_ms())
        if self._waiting and self._waiting[-1].like(deaths):
            self._waiting[-1].offsets |= offsets
        else:
            self._waiting.append(deaths)
        self._wake()

    def _drop(self) -> None:
        gone, self._dropped = self._dropped, BitMap64()
        self.dropped += len(gone)
        self._done(gone)

    def _done(self, offsets: BitMap64) -> None:
        self._offsets -= offsets
        self._outlets.settle(list(runs_in(offsets)))
        self.arrived.wake()

    def _return(self, offsets: BitMap64) -> None:
        """Make messages without a topic of origin ready again."""
        if offsets:
            self._offsets -= offsets
            self._outlets.give_back(offsets)
            self.arrived.wake()

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = self._tasks.spawn(self._run(), "dead letters")

    def close(self) -> None:
        """Discard unsent messages: the subscription was deleted."""
        self._store = None
        self._waiting.clear()
        self._sent = None
        if self._worker is not None:
            self._worker.cancel()
        self.arrived.wake()

    async def _run(self) -> None:
        pause_s = _PAUSE_S
        try:
            while self._waiting or (self._sent is not None and self._sent.parcel is not None):
                try:
                    await self._send_next()
                    pause_s = _PAUSE_S
                except (StreamClosedError, StreamFencedError):
                    return  # the next broker continues
                except WeirError as failed:
                    log.warning("%s: sending dead letters failed, retrying: %s", self._said, failed)
                    await self._clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._worker = None

    async def _send_next(self) -> None:
        """Process one parcel, from its selection to the acknowledgement."""
        if self._sent is None or self._sent.parcel is None:
            letters = await self._decide()
        else:
            letters = await self._made_again(self._sent.parcel)
        sent = self._sent
        if sent is None or sent.parcel is None:
            return  # no message has a destination
        if self._store is not None:
            await self._store.flush()
        gone = await self._deliver(letters, sent.parcel, sent.stamp)
        if gone and sent.parcel.to.is_back:
            stay = _all_in({name: runs for name, runs in sent.parcel.targets.items() if name in gone})
            self._arrived(_all_in(sent.parcel.targets) - stay)
            self._return(stay)
        else:
            self._arrived(_all_in(sent.parcel.targets))

    async def _decide(self) -> "Mapping[int, Letter | None]":
        """Select the next messages and their destinations; once stored, the selection is final."""
        deaths = self._waiting[0]
        chosen = BitMap64(islice(deaths.offsets, _MOST_LETTERS))
        count = self._outlets.deliveries_of
        deaths.deliveries = {offset: times for offset in chosen if (times := count(offset))}
        letters = await self._maker.letters(chosen, deaths)
        targets = await self._routed(letters, deaths.to)
        if targets:
            before = self._sent or Sent(FIRST_ID + self._rng.getrandbits(ID_BITS), 0)
            counted = {offset: times for offset, times in deaths.deliveries.items() if offset in letters}
            parcel = DeadLetterBatch(deaths.reason, deaths.to, deaths.at_ms, targets, counted)
            self._sent = Sent(before.sender, before.number + 1, parcel)
            if self._store is not None:
                self._store.put(self._key, self._sent.encode())
        looked_at = BitMap64(letters)
        deaths.offsets -= looked_at
        if not deaths.offsets:
            self._waiting.popleft()
        lost = looked_at - _all_in(targets)
        if lost and deaths.to.is_back:
            self._return(lost)
        elif lost:
            self.dropped += len(lost)
            self._done(lost)
        return letters

    async def _made_again(self, parcel: DeadLetterBatch) -> "Mapping[int, Letter | None]":
        going = _all_in(parcel.targets)
        deaths = Deaths(going, parcel.reason, parcel.to, parcel.at_ms, parcel.deliveries)
        letters: dict[int, Letter | None] = {}
        while left := going - BitMap64(letters):
            letters |= await self._maker.letters(left, deaths)
        return letters

    def _arrived(self, offsets: BitMap64) -> None:
        """Write the acknowledgements and the end of the parcel in one atomic write."""
        if self._sent is not None:
            self._sent = Sent(self._sent.sender, self._sent.number)
            if self._store is not None:
                self._store.put(self._key, self._sent.encode())
        self.moved += len(offsets)
        self._done(offsets)

    # --- sending ------------------------------------------------------------------------------------------------

    async def _routed(self, letters: "Mapping[int, Letter | None]", to: Destination) -> dict[str, list[Run]]:
        """Route letters to existing queues or topics."""
        going: dict[str, BitMap64] = {}
        exchanges = None if to.exchange is None else await self._routes.exchanges()
        for offset, letter in letters.items():
            for name in () if letter is None else self._names_of(letter, to, exchanges):
                going.setdefault(name, BitMap64()).add(offset)
        for name in list(going):
            try:
                await self._target(name, to)
            except (QueueNotFoundError, InvalidNameError):
                del going[name]
        return {name: list(runs_in(offsets)) for name, offsets in going.items()}

    def _names_of(self, letter: Letter, to: Destination, exchanges: NamespaceExchanges | None) -> Sequence[str]:
        if to.topic is not None:
            return (to.topic,)
        if letter.back is not None:
            return (str(letter.back),)
        routed = letter.routed
        if to.exchange is None or exchanges is None or routed is None:
            return ()
        try:
            found = exchanges.route(to.exchange, routed.keys, routed.headers)
        except ExchangeNotFoundError:
            return ()
        cycles = [name for name in found.queues if routed.cycles(name)]
        if cycles:
            log.info("%s: dead letter cycle, message not sent to %s again", self._said, ", ".join(cycles))
        return [name for name in found.queues if name not in cycles]

    async def _target(self, name: str, to: Destination) -> Queue:
        """Raises QueueNotFoundError, except for a dead letter topic, which is created."""
        if to.exchange is not None:
            return await self._routes.target(name)
        try:
            return await self._routes.topic(TopicName.parse(name), create=to.topic is not None)
        except QueueNotFoundError:
            if to.topic is None:
                raise
            raise _unloaded_topic(name) from None

    async def _deliver(
        self, letters: "Mapping[int, Letter | None]", parcel: DeadLetterBatch, stamp: Stamp | None
    ) -> frozenset[str]:
        """Send to all targets; raise if one of them fails. Targets deduplicate repeated letters. Return the names
        of targets that do not exist any more."""
        encoded: dict[int, bytes] = {}
        handing: dict[str, QueueMessages] = {}
        for name, runs in parcel.targets.items():
            there = [
                (offset, letter)
                for first, end in runs
                for offset in range(first, end)
                if (letter := letters.get(offset)) is not None
            ]
            for offset, letter in there:
                if offset not in encoded:
                    encoded[offset] = encode_message(letter.message)
            messages = _messages([letter for _, letter in there], [encoded[offset] for offset, _ in there], stamp)
            if parcel.to.topic is not None:
                messages = replace(messages, kept=True)
            if there:
                handing[name] = messages
            await self._turns.next()
        going = [self._hand_over(name, parcel.to, messages) for name, messages in handing.items()]
        gone = []
        for name, ended in zip(handing, await asyncio.gather(*going, return_exceptions=True), strict=True):
            if isinstance(ended, BaseException):
                raise ended
            if not ended:
                gone.append(name)
        return frozenset(gone)

    async def _hand_over(self, name: str, to: Destination, messages: QueueMessages) -> bool:
        """Return whether the queue exists. A full queue drops letters by its own overflow rule, and reports that
        itself."""
        try:
            queue = await self._target(name, to)
            await queue.wait_capacity()
            await queue.publish(messages)
        except QueueNotFoundError:
            if to.topic is not None:
                raise _unloaded_topic(name) from None
            log.info("%s: dead letters not sent, %s does not exist any more", self._said, name)
            return False
        return True

    # --- refused messages ---------------------------------------------------------------------------------------

    def refuse(self, encoded: Sequence[Buffer], to: Destination | None) -> None:
        """Send messages that a full queue rejected to the dead letter exchange, with best effort: their publisher
        has received a rejection."""
        if to is None:
            self.dropped += len(encoded)
        else:
            deaths = Deaths(BitMap64(), Reason.MAX_LENGTH, to, self._clock.wall_ms())
            self._tasks.spawn(self._send_refused(list(encoded), deaths), "refused messages")

    async def _send_refused(self, encoded: Sequence[Buffer], deaths: Deaths) -> None:
        try:
            messages = decode_messages(join_messages(encoded))
            letters = {place: self._maker.letter(message, deaths) for place, message in enumerate(messages)}
            targets = await self._routed(letters, deaths.to)
            await self._deliver(letters, DeadLetterBatch(deaths.reason, deaths.to, deaths.at_ms, targets), None)
            self.moved += len(_all_in(targets))
        except WeirError as failed:
            log.warning("%s: refused messages could not become dead letters: %s", self._said, failed)


def _unloaded_topic(name: str) -> WeirError:
    """The error for a dead letter topic that was just created, or deleted and created again: the outbox
    retries."""
    return WeirError(f"{name} exists, but its broker has not loaded it yet", hint="the broker tries again")


def _messages(letters: Sequence[Letter], encoded: Sequence[bytes], stamp: Stamp | None) -> QueueMessages:
    return QueueMessages(
        encoded,
        persistent=any(letter.persistent for letter in letters),
        expirations_ms={
            place: int(said)
            for place, letter in enumerate(letters)
            if letter.routed is not None and (said := letter.routed.properties.expiration) is not None
        },
        stamp=stamp,
    )


def _all_in(targets: Mapping[str, Sequence[Run]]) -> BitMap64:
    found = BitMap64()
    for runs in targets.values():
        for first, end in runs:
            found.add_range(first, end)
    return found


class TopicDeadLetters:
    """Fills `subscription_state.GivenUp`. `rules`: returns the present queue rules of the topic."""

    def __init__(
        self,
        context: BrokerContext,
        topic: TopicName,
        stream: Stream,
        state: StateLog,
        *,
        subscriptions: Callable[[], Mapping[str, Subscription]],
        rules: Callable[[], QueueRules],
        tasks: TaskScope,
    ) -> None:
        self._context = context
        self._topic = topic
        self._stream = stream
        self._state = state
        self._subscriptions = subscriptions
        self._rules = rules
        self._tasks = tasks
        self._outboxes: dict[str, DeadLetters] = {}
        #: Refused dead letter topics of policies by subscription, to log each refusal once.
        self._refused: dict[str, TopicName] = {}

    def open(self) -> None:
        """Send the parcels that the previous broker had not finished."""
        for key in self._state.keys(PARCEL_KEY):
            name = key.removeprefix(PARCEL_KEY).removeprefix("/") or QUEUE_SUBSCRIPTION
            if key == parcel_key(name):
                self.of(name)

    def of(self, subscription: str) -> DeadLetters:
        """The outbox of a subscription, which need not exist yet."""
        found = self._outboxes.get(subscription)
        if found is None:

            def settle(ranges: Sequence[Run]) -> None:
                if (known := self._subscriptions().get(subscription)) is not None:
                    known.ack(None, ranges)

            def give_back(offsets: BitMap64) -> None:
                if (known := self._subscriptions().get(subscription)) is not None:
                    known.failing.again(offsets)

            def deliveries_of(offset: int) -> int:
                known = self._subscriptions().get(subscription)
                return 0 if known is None else known.deliveries.of(offset)

            queue = queue_of_topic(self._topic)
            said = queue if subscription == QUEUE_SUBSCRIPTION else f"{queue}/{subscription}"
            found = self._outboxes[subscription] = DeadLetters(
                Origin(said, self._topic, subscription),
                self._stream,
                self._context.letters.routes(self._topic.namespace),
                outlets=Outlets(settle, give_back, deliveries_of),
                store=self._state,
                runtime=self._context.runtime,
                tasks=self._tasks,
            )
        return found

    @property
    def waiting(self) -> bool:
        """Whether messages that were given up have not arrived at their destination yet."""
        return any(self._outboxes.values())

    def close(self) -> None:
        """Wake all waiters: they must continue with another broker."""
        for outbox in self._outboxes.values():
            outbox.arrived.wake()

    # --- for subscriptions --------------------------------------------------------------------------------------

    def dead(self, subscription: Subscription) -> BitMap64:
        found = self._outboxes.get(subscription.name)
        return BitMap64() if found is None else found.offsets

    def take(self, subscription: Subscription, offsets: BitMap64, reason: Reason) -> None:
        self.of(subscription.name).take(offsets, reason, self._destination(subscription))

    def _destination(self, subscription: Subscription) -> Destination:
        """The dead letter exchange for a queue that has one; else the subscription's dead letter topic."""
        rules = self._rules()
        if subscription.name == QUEUE_SUBSCRIPTION and rules.dead_letter_exchange is not None:
            return Destination(rules.dead_letter_exchange, rules.dead_letter_key)
        return Destination(topic=str(self._target(subscription)))

    def _target(self, subscription: Subscription) -> TopicName:
        """The dead letter topic of the policy; the default one if no role that may store the policy may produce to
        it, because earlier releases stored policies without a check."""
        named = subscription.retry.dead_letters_of(self._topic, subscription.name)
        try:
            self._context.guard.check_stored_target(self._topic.base, named)
        except NotAuthorisedError as denied:
            default = RetryPolicy().dead_letters_of(self._topic, subscription.name)
            if self._refused.get(subscription.name) != named:
                self._refused[subscription.name] = named
                log.warning(
                    "%s: the policy of subscription %s names %s for dead letters, which is refused: %s (%s). They "
                    "go to %s",
                    *(self._topic, subscription.name, named, denied.what, denied.hint, default),
                )
            return default
        self._refused.pop(subscription.name, None)
        return named

    def forget(self, subscription: Subscription) -> None:
        found = self._outboxes.pop(subscription.name, None)
        if found is not None:
            found.close()
        self._state.delete(parcel_key(subscription.name))

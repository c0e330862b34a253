"""One channel: its commands in their order, its mode, what it consumes, and how it ends.

A command that takes a while holds up those behind it on its channel, and no other channel. An error that is the
channel's alone closes it: the client is told, and whatever it still sends is ignored until it agrees.

What a channel fetches one by one (basic.get): a getter per queue, kept while it is of use.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any

from weir.broker.api.queues import Queue
from weir.gateway.amqp.confirms import Confirms
from weir.gateway.amqp.consumers import ConsumerLink
from weir.gateway.amqp.errors import precondition_failed, refusal_of, refuse
from weir.gateway.amqp.method_table import HANDLERS, Outcome
from weir.gateway.amqp.publish_properties import REPLY_TO, reply_name
from weir.gateway.amqp.transaction import Transaction
from weir.gateway.amqp.unacked import Taken, Unacked
from weir.model.errors import WeirError
from weir.model.ids import Buffer
from weir.runtime.tasks import OPEN_UNITS
from weir.wire.amqp.command_reader import Command, PlainPublishes
from weir.wire.amqp.content import Deliveries, outgoing
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.methods import Method, basic, encode_method
from weir.wire.amqp.methods import channel as methods

if TYPE_CHECKING:
    from weir.gateway.amqp.session import Session


#: Getters that are kept although nothing of theirs is unacknowledged.
_KEPT = 16


class Getters:
    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._getters: OrderedDict[Queue, Taken] = OrderedDict()

    async def of(self, queue: Queue) -> Taken:
        """The getter for a queue."""
        found = self._getters.get(queue)
        if found is None:
            consumer = await queue.getter(self._channel.session.role)
            found = self._getters[queue] = Taken(consumer)
            await self._tidy(queue)
        self._getters.move_to_end(queue)
        return found

    async def _tidy(self, kept: Queue) -> None:
        """Close those of queues that are gone, and the longest unused ones."""
        over = len(self._getters) - _KEPT
        for queue, getter in list(self._getters.items()):
            if queue is kept or getter.unacked:
                continue
            if over > 0 or not queue.alive:
                over -= 1
                del self._getters[queue]
                await getter.consumer.close()

    async def drop(self, queue: Queue) -> None:
        """It does not work any more."""
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.over = True
            await getter.consumer.close()

    async def close(self) -> None:
        """What is not acknowledged is requeued."""
        getters = list(self._getters.values())
        self._getters.clear()
        for getter in getters:
            await getter.consumer.close()


log = logging.getLogger(__name__)

#: Settlements are told to queues together with others of their turn; everything else sees them done.
_SETTLES = frozenset({basic.Ack, basic.Nack, basic.Reject})


class ChannelState(Enum):
    OPEN = "takes commands"
    CLOSING = "ignores all until the client agrees that it is closed"
    CLOSED = "is over"


class Channel:
    """Of one session, under the number that the client gave it."""

    def __init__(self, session: "Session", number: int) -> None:
        self.session = session
        self.number = number
        self.state = ChannelState.OPEN
        #: None unless publishes are confirmed; None unless there are transactions.
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.consumers: dict[str, ConsumerLink] = {}
        #: Consumers that get nothing more and whose messages are not all settled.
        self.retired: dict[ConsumerLink, None] = {}
        self.getters = Getters(self)
        self.unacked = Unacked()
        #: Of those, what consumers have; what was fetched counts for no prefetch.
        self.prefetched = 0
        #: Of new consumers, and of all together; 0: no limit.
        self.prefetch = 0
        self.global_prefetch = 0
        #: The last that was declared: what "" stands for.
        self.last_queue = ""
        self.published = self.returned = self.delivered = self.acked = self.redelivered = 0
        self._reply: tuple[str, Deliveries] | None = None
        self._waiting: deque[Command] = deque()
        self._busy = False
        self._released: asyncio.Task[None] | None = None

    # --- commands ----------------------------------------------------------------------------------------

    def take(self, command: Command) -> None:
        """A command came."""
        if self._busy:
            self.session.load.wait(_size(command))
            self._waiting.append(command)
            return
        work = self._begin(command)
        if work is not None:
            self.wait_for(command.method, work)

    @property
    def takes_plain(self) -> bool:
        """Whether publishes are put into queues as they come."""
        return not self._busy and self.transaction is None and self.state is ChannelState.OPEN

    def take_plain(self, plain: PlainPublishes, bodies: "list[memoryview]") -> None:
        """Publishes came that are like the last one."""
        try:
            left = self.session.publishing.take_plain(self, plain, bodies)
        except Exception as failure:
            self.fail(failure, plain.method)
            return
        for body in left:
            command = Command(self.number, plain.method, plain.properties, plain.header, body, len(body))
            self.take(command)

    def take_acks(self, tags: list[int]) -> None:
        """Single messages are acknowledged, one after the other."""
        runs, unknown = self.unacked.take_each(tags)
        touched = self.session.settling.setdefault(self, {})
        for taken, first, end in runs:
            taken.ack_run(first, end)
            self.acked += end - first
            if isinstance(taken, ConsumerLink):
                self.prefetched -= end - first
            touched[taken] = None
        if unknown is not None:
            self.fail(precondition_failed(f"unknown delivery tag {unknown}"), basic.Ack(unknown))

    def wait_for(self, method: Method, work: Coroutine[Any, Any, Method | None]) -> None:
        """What comes now waits until the work is done."""
        self._busy = True
        self.session.tasks.spawn(self._work(method, work), method.name)

    def _begin(self, command: Command) -> Coroutine[Any, Any, Method | None] | None:
        method = command.method
        if self.state is not ChannelState.OPEN:
            self._agree(method)
            return None
        kind = type(method)
        try:
            outcome: Outcome
            if kind is basic.Publish:
                outcome = self.session.publishing.take(self, command)
            else:
                if kind not in _SETTLES:
                    self.session.flush()
                handler = HANDLERS.get(kind)
                if handler is None:
                    raise refuse(ReplyCode.COMMAND_INVALID, f"{method.name} is not for a channel that is open")
                outcome = handler(self, method)
        except Exception as failure:
            self.fail(failure, method)
            return None
        if isinstance(outcome, Method):
            self.say(outcome)
            return None
        return outcome

    async def _work(self, method: Method, work: Coroutine[Any, Any, Method | None]) -> None:
        turns, waiting = self.session.turns, self._waiting
        following: Coroutine[Any, Any, Method | None] | None = work
        while following is not None:
            await self._finish(method, following)
            following = None
            while waiting and following is None:
                command = waiting.popleft()
                self.session.load.waited(_size(command))
                method = command.method
                following = self._begin(command)
                if following is None and turns.spend():
                    self.session.flush()
                    await turns.next()
        self._busy = False
        self.session.flush()

    async def _finish(self, method: Method, work: Coroutine[Any, Any, Method | None]) -> None:
        try:
            answer = await work
        except Exception as failure:
            self.fail(failure, method)
        else:
            if answer is not None and self.state is not ChannelState.CLOSING:
                self.say(answer)

    def _agree(self, method: Method) -> None:
        """The client speaks on a channel that was closed: it did not know, or it agrees."""
        if isinstance(method, methods.Close):
            self.say(methods.CloseOk())
        if isinstance(method, methods.Close | methods.CloseOk):
            self.session.forget_channel(self)

    @property
    def idle(self) -> bool:
        return not self._busy

    # --- saying ------------------------------------------------------------------------------------------

    def say(self, method: Method) -> None:
        self.session.outbox.say(encode_method(self.number, method))

    def fail(self, failure: BaseException, method: Method | None = None) -> None:
        """Close the channel, or the connection if the error is one of those."""
        if self.state is not ChannelState.OPEN:
            return
        session = self.session
        if not isinstance(failure, WeirError):
            log.error("a command of %s failed", session.peer, exc_info=failure)
        refusal = refusal_of(failure, method, session.vhost.name, session.user)
        if not refusal.code.ends_channel_only:
            session.refuse(refusal)
            return
        log.info("channel %d of %s is closed: %s", self.number, session.peer, refusal.text)
        session.flush()
        if self.confirms is not None:
            self.confirms.tell()
        self.state = ChannelState.CLOSING
        self.say(methods.Close(*refusal))
        self._forget_waiting()
        self.begin_release()

    # --- consuming ---------------------------------------------------------------------------------------

    @property
    def prefetch_left(self) -> int:
        """How many more the channel may have delivered."""
        most = self.session.limits.max_unacked
        return (min(most, self.global_prefetch) if self.global_prefetch else most) - self.prefetched

    def delivers(self, count: int) -> None:
        """So many messages go to consumers that acknowledge them."""
        self.prefetched += count
        if self.global_prefetch and self.prefetch_left <= 0:
            for link in self.consumers.values():
                link.hold_back()

    def settled(self, links: "dict[Taken, None]") -> None:
        """Messages of these were settled: there is credit again."""
        for taken in links:
            taken.settled()
        if self.global_prefetch or len(self.unacked) > self.session.limits.max_unacked // 2:
            self.wake()

    def wake(self) -> None:
        """There may be credit again for any consumer."""
        for link in self.consumers.values():
            link.settled()

    # --- direct reply-to ---------------------------------------------------------------------------------

    def expect_replies(self, tag: str) -> None:
        """What is published to the name that stands for this channel is delivered to it."""
        if self._reply is not None:
            raise precondition_failed("reply consumer already set")
        name = self.session.services.replies.expect(self)
        self._reply = (name, Deliveries(self.number, tag, self.session.frame_max))
        self._reply_tag = tag

    def cancel_replies(self, tag: str) -> None:
        if self._reply is not None and self._reply_tag == tag:
            self.session.services.replies.forget(self._reply[0])
            self._reply = None

    def reply_name(self) -> str:
        """What a request says instead of `amq.rabbitmq.reply-to`."""
        if self._reply is None:
            raise precondition_failed("fast reply consumer does not exist")
        return reply_name(self._reply[0])

    def has_reply_tag(self, tag: str) -> bool:
        return self._reply is not None and self._reply_tag == tag

    def take_reply(self, parts: Sequence[Buffer]) -> None:
        envelope, raw, body = parts
        message = outgoing(bytes(envelope), bytes(raw), body)
        if self._reply is not None and self.state is ChannelState.OPEN:
            self.session.outbox.say_all(self._reply[1].frames(self.unacked.next_tag(), False, message))

    # --- the end -----------------------------------------------------------------------------------------

    def begin_release(self) -> "asyncio.Task[None]":
        """Stop consuming at once, and let go of all that it has; done when its queues know."""
        for link in self.consumers.values():
            link.mute()
        if self._reply is not None:
            self.cancel_replies(self._reply_tag)
        if self._released is None or (self._released.done() and self.consumers):
            self._released = self.session.begin_release(self.release())
        return self._released

    @property
    def released(self) -> "asyncio.Task[None] | None":
        return self._released

    async def release(self) -> None:
        """What is not acknowledged is requeued."""
        links = [*self.consumers.values(), *self.retired]
        self.consumers.clear()
        self.retired.clear()
        self.unacked.take_all()
        self.session.services.metrics.consumers -= sum(1 for link in links if not link.is_retired)
        closing: Iterator[Coroutine[Any, Any, None]] = (link.close() for link in links)
        for failed in await self.session.turns.run_all(chain(closing, [self.getters.close()]), OPEN_UNITS):
            log.warning("a consumer of %s did not close: %s", self.session.peer, failed)

    async def close(self) -> None:
        """The client or the session ends it."""
        await self.session.publishing.settled()
        if self.confirms is not None:
            self.confirms.tell()
        self.state = ChannelState.CLOSED
        await self.begin_release()

    def _forget_waiting(self) -> None:
        """Drop what waits, but for the client's word that the channel is closed."""
        waiting, load = self._waiting, self.session.load
        load.waited(sum(map(_size, waiting)), len(waiting))
        agreed = [one for one in waiting if isinstance(one.method, methods.Close | methods.CloseOk)]
        waiting.clear()
        for command in agreed[:1]:
            self._agree(command.method)


def _size(command: Command) -> int:
    return len(command.body) if command.body is not None else 0


def is_reply_queue(name: str) -> bool:
    return name == REPLY_TO

"""AMQP channel: command order, confirm or transaction mode, consumers, getters (basic.get), and closing.

A slow command delays later commands on its own channel, and no other channel. A channel error closes only the
channel: the broker sends channel.close, and ignores further commands until the client sends close-ok.
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


#: Getters without unacknowledged messages that the channel caches.
_KEPT = 16


class Getters:
    """Consumers for basic.get: one per queue, cached per channel."""

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
        """Close getters of deleted or moved queues, and the least recently used ones."""
        over = len(self._getters) - _KEPT
        for queue, getter in list(self._getters.items()):
            if queue is kept or getter.unacked:
                continue
            if over > 0 or not queue.alive:
                over -= 1
                del self._getters[queue]
                await getter.consumer.close()

    async def drop(self, queue: Queue) -> None:
        """Discard the queue's getter, which the broker has closed."""
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.over = True
            await getter.consumer.close()

    async def close(self) -> None:
        """Close all getters, which requeues their unacknowledged messages."""
        getters = list(self._getters.values())
        self._getters.clear()
        for getter in getters:
            await getter.consumer.close()


log = logging.getLogger(__name__)

#: The session sends settlements to queues in batches, once per turn; it flushes them before any other method.
_SETTLES = frozenset({basic.Ack, basic.Nack, basic.Reject})


class ChannelState(Enum):
    OPEN = "accepts commands"
    CLOSING = "ignores commands until the client sends close-ok"
    CLOSED = "closed"


class Channel:
    """One channel of a session, under the number that the client chose."""

    def __init__(self, session: "Session", number: int) -> None:
        self.session = session
        self.number = number
        self.state = ChannelState.OPEN
        #: Set in confirm mode and in transaction mode, respectively.
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.consumers: dict[str, ConsumerLink] = {}
        #: Cancelled consumers with unsettled messages.
        self.retired: dict[ConsumerLink, None] = {}
        self.getters = Getters(self)
        self.unacked = Unacked()
        #: Unacknowledged messages of consumers; messages of basic.get do not count for a prefetch.
        self.prefetched = 0
        #: Prefetch of each new consumer, and of all consumers together; 0: no limit.
        self.prefetch = 0
        self.global_prefetch = 0
        #: The queue that the channel declared last; clients refer to it as "".
        self.last_queue = ""
        self.published = self.returned = self.delivered = self.acked = self.redelivered = 0
        self._reply: tuple[str, Deliveries] | None = None
        self._waiting: deque[Command] = deque()
        self._busy = False
        self._released: asyncio.Task[None] | None = None

    # --- commands ----------------------------------------------------------------------------------------

    def take(self, command: Command) -> None:
        """Run a command, or queue it behind the current one."""
        if self._busy:
            self.session.load.wait(_size(command))
            self._waiting.append(command)
            return
        work = self._begin(command)
        if work is not None:
            self.wait_for(command.method, work)

    @property
    def takes_plain(self) -> bool:
        """Whether the channel can add publishes to queue batches immediately, with no command ahead of them."""
        return not self._busy and self.transaction is None and self.state is ChannelState.OPEN

    def take_plain(self, plain: PlainPublishes, bodies: "list[memoryview]") -> None:
        """Publish bodies that share method and properties with the previous publish."""
        try:
            left = self.session.publishing.take_plain(self, plain, bodies)
        except Exception as failure:
            self.fail(failure, plain.method)
            return
        for body in left:
            command = Command(self.number, plain.method, plain.properties, plain.header, body, len(body))
            self.take(command)

    def take_acks(self, tags: list[int]) -> None:
        """Acknowledge single messages, in this order."""
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
        """Run `work` in the background; later commands of the channel wait for it."""
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
        """Handle a method on a closing channel: the client's own close, or its close-ok. Ignore all others."""
        if isinstance(method, methods.Close):
            self.say(methods.CloseOk())
        if isinstance(method, methods.Close | methods.CloseOk):
            self.session.forget_channel(self)

    @property
    def idle(self) -> bool:
        return not self._busy

    # --- sending -----------------------------------------------------------------------------------------

    def say(self, method: Method) -> None:
        self.session.outbox.say(encode_method(self.number, method))

    def fail(self, failure: BaseException, method: Method | None = None) -> None:
        """Close the channel, or the connection if AMQP defines the error as a connection error."""
        if self.state is not ChannelState.OPEN:
            return
        session = self.session
        if not isinstance(failure, WeirError):
            log.error("command of %s failed", session.peer, exc_info=failure)
        refusal = refusal_of(failure, method, session.vhost.name, session.user)
        if not refusal.code.ends_channel_only:
            session.refuse(refusal)
            return
        log.info("channel %d of %s closed: %s", self.number, session.peer, refusal.text)
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
        """How many more messages the broker may deliver on this channel."""
        most = self.session.limits.max_unacked
        return (min(most, self.global_prefetch) if self.global_prefetch else most) - self.prefetched

    def delivers(self, count: int) -> None:
        """Count messages delivered to consumers that acknowledge."""
        self.prefetched += count
        if self.global_prefetch and self.prefetch_left <= 0:
            for link in self.consumers.values():
                link.hold_back()

    def settled(self, links: "dict[Taken, None]") -> None:
        """Update the credit of consumers and getters after the client settled messages of theirs."""
        for taken in links:
            taken.settled()
        if self.global_prefetch or len(self.unacked) > self.session.limits.max_unacked // 2:
            self.wake()

    def wake(self) -> None:
        """Let every consumer of the channel check its credit again."""
        for link in self.consumers.values():
            link.settled()

    # --- direct reply-to ---------------------------------------------------------------------------------

    def expect_replies(self, tag: str) -> None:
        """Register the channel for direct reply-to: messages to its reply name reach consumer `tag`."""
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
        """The reply name of this channel, which replaces `amq.rabbitmq.reply-to` in a request."""
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
        """Stop delivery at once and release all messages; the task ends when all consumers are closed."""
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
        """Close consumers and getters, which requeues their unacknowledged messages."""
        links = [*self.consumers.values(), *self.retired]
        self.consumers.clear()
        self.retired.clear()
        self.unacked.take_all()
        self.session.services.metrics.consumers -= sum(1 for link in links if not link.is_retired)
        closing: Iterator[Coroutine[Any, Any, None]] = (link.close() for link in links)
        for failed in await self.session.turns.run_all(chain(closing, [self.getters.close()]), OPEN_UNITS):
            log.warning("consumer of %s failed to close: %s", self.session.peer, failed)

    async def close(self) -> None:
        """Close the channel for the client or the session, after its publishes are settled."""
        await self.session.publishing.settled()
        if self.confirms is not None:
            self.confirms.tell()
        self.state = ChannelState.CLOSED
        await self.begin_release()

    def _forget_waiting(self) -> None:
        """Drop waiting commands, except for the client's close or close-ok."""
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

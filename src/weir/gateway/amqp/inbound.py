"""Inbound side of an AMQP connection: the receive loop, connection.blocked notifications, and heartbeats.

A fast path handles runs of similar publishes and runs of acks. Over a limit, or while a queue has no capacity, the
loop stops reading; a client with the capability receives connection.blocked. Any received bytes count as a sign of
life, and this side sends heartbeats only while it has nothing else to send.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weir.gateway.amqp.handshake import Event, State, start
from weir.model.errors import AmqpError, AmqpHeaderError, NetworkError, TooManyError, WeirError
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import RequestBudget, RequestShare
from weir.runtime.interfaces import Clock, Connection, Timer
from weir.runtime.tasks import UNIT_BYTES
from weir.wire.amqp.command_reader import MAX_HELD_BYTES, Command, CommandReader
from weir.wire.amqp.frames import (
    HEARTBEAT_FRAME,
    OVERHEAD_BYTES,
    PROTOCOL_HEADER,
    ReplyCode,
    Role,
    begins_with_ack,
    take_acks,
)
from weir.wire.amqp.methods import basic, connection
from weir.wire.first_bytes import answer_to

if TYPE_CHECKING:
    from weir.gateway.amqp.session import Session


log = logging.getLogger(__name__)

#: Publishes of the fast path that count as one unit of work.
_PLAIN_PER_UNIT = 4
#: A smaller buffer means that the socket had no more to read.
_MUCH_BYTES = 4096
#: After a larger message, the session waits until it is stored before it reads on.
_LARGE_BYTES = 4 * 1024 * 1024
#: The highest channel number.
MAX_CHANNEL = (1 << 16) - 1


class Receiving:
    """The receive loop of one session."""

    def __init__(self, session: "Session", transport: Connection, request_budget: RequestBudget) -> None:
        self._session = session
        self._transport = transport
        self._request_share = RequestShare(request_budget, session.clock)
        most = session.limits.max_message_bytes
        self._reader = CommandReader(
            Role.SERVER, channel_max=0, max_body=most, max_held=max(MAX_HELD_BYTES, 2 * most)
        )
        #: Whether reading is paused. The heartbeat check then ignores the client's silence.
        self.held_back = False
        #: Whether the connection is closing after unparsable bytes: all further input is discarded.
        self._unreadable = False

    def tuned(self, frame_max: int) -> None:
        self._reader.frame_max = frame_max
        self._reader.channel_max = MAX_CHANNEL

    def forget_channel(self, number: int) -> None:
        """Drop the unfinished message of a closed channel."""
        self._reader.forget_channel(number)

    def late(self, now: float) -> bool:
        """Whether other connections wait for memory reserved for this one's message, which has stalled."""
        return self._request_share.late(now, self._session.heartbeats.heard_at)

    def stop_keeping(self) -> None:
        """Release the memory of unfinished messages, because the connection is closing."""
        self._reader.drop_bodies()
        self._request_share.close()

    def forget(self) -> None:
        """Release all memory after the connection ended."""
        self._reader.forget()
        self._request_share.close()

    async def run(self) -> None:
        try:
            while data := await self._transport.receive():
                self._session.heartbeats.heard()
                if self._session.reads:
                    await self._take(data)
                else:
                    self._drain(data)
                if self._session.state is State.CLOSED:
                    return
                data = b""  # an idle connection keeps no buffer
                if self._session.reads and self._reader.announced > self._request_share.arriving:
                    await self._room_for_the_rest()
        except NetworkError as lost:
            log.debug("connection of %s lost: %s", self._session.peer, lost)
        self._session.move(Event.GONE)

    async def _take(self, data: Buffer) -> None:
        """Process the commands of a receive buffer, as fast as the limits allow."""
        session, reader, size = self._session, self._reader, len(data)
        session.services.metrics.bytes_in += size
        session.received_bytes += size
        session.turns.begin()
        received = data
        try:
            if (reader.has_plain or session.acknowledges) and session.state is State.SERVING:
                begun, data = reader.resume(data)
                if begun:
                    await self._take_all(begun)
                if session.reads and begins_with_ack(data):
                    data = await self._take_acks(data)
                if session.reads and data and reader.has_plain:
                    data = await self._take_plain(data)
            if data:
                await self._take_all(reader.feed(data))
            if not session.reads:
                return
            if session.state is State.HEADER and reader.begun:
                session.move(Event.GREETED)
                session.say(start(session))
        except AmqpHeaderError as other:
            wrong = session.served.refusal(received)
            answer = b"" if wrong is None else answer_to(received, wrong)
            session.outbox.say(answer or PROTOCOL_HEADER)
            session.hang_up(wrong or other)
            return
        except WeirError as bad:
            self._unreadable = True
            self._session.fail(bad)
            return
        finally:
            session.flush()
        await self._have_capacity(size)

    async def _have_capacity(self, size: int) -> None:
        """After a buffer of `size` bytes, wait for capacity for the next one."""
        session = self._session
        if self._request_share.arriving and not self._reader.announced:
            if self._request_share.arriving > _LARGE_BYTES:
                await self._stored()
            self._request_share.arrived()
        if session.publishing.touched:
            await self._let_rest()
        if not session.outbox.is_clear:
            await session.outbox.drain()
        if size >= _MUCH_BYTES:
            await session.clock.sleep(0)  # the next buffer may be here already

    async def _take_all(self, commands: Iterable[Command]) -> None:
        """Process commands. Discard those after the end of the session, except for the client's close-ok."""
        turns = self._session.turns
        for command in commands:
            if not self._session.reads:
                self._after_the_end(command)
                continue
            self._session.services.metrics.count(command.method.name)
            if self._session.state is State.SERVING:
                self._session.on_command(command)
            else:
                await self._session.on_opening(command)
            self._session.received_frames += 1
            if self._session.load.full:
                await self._hold_back()
            body = command.body
            if turns.spend(1 if body is None else 1 + len(body) // UNIT_BYTES):
                self._session.flush()
                await turns.next()

    async def _take_acks(self, data: memoryview) -> memoryview:
        """Process the run of single acks at the start of the buffer; returns the rest of the buffer."""
        turns = self._session.turns
        while begins_with_ack(data) and self._session.state is State.SERVING:
            number, tags, end = take_acks(data, 4 * max(1, turns.left))
            channel = self._session.channels.get(number)
            if not tags or channel is None or not channel.takes_plain:
                break
            data = data[end:]
            self._session.received_frames += len(tags)
            self._session.services.metrics.count(basic.Ack.name, len(tags))
            channel.take_acks(tags)
            if turns.spend(1 + len(tags) // _PLAIN_PER_UNIT):
                self._session.flush()
                await turns.next()
        return data

    async def _take_plain(self, data: Buffer) -> memoryview:
        """Process the run of publishes at the start of the buffer that differ from the previous publish only in
        their bodies; returns the rest of the buffer."""
        turns, view, at = self._session.turns, memoryview(data), 0
        while (plain := self._reader.plain_publishes()) is not None and self._session.state is State.SERVING:
            channel = self._session.channels.get(plain.channel)
            if channel is None or not channel.takes_plain:
                break
            before = at
            bodies, at = plain.take(
                view,
                at,
                count=max(1, 4 * turns.left),
                size=self._session.limits.max_publish_bytes,
                limit=min(self._session.limits.max_message_bytes, self._session.frame_max - OVERHEAD_BYTES),
            )
            if not bodies:
                break
            self._session.received_frames += 3 * len(bodies)
            self._session.services.metrics.count(basic.Publish.name, len(bodies))
            channel.take_plain(plain, bodies)
            if self._session.load.full:
                await self._hold_back()
            if turns.spend(1 + len(bodies) // _PLAIN_PER_UNIT + (at - before) // UNIT_BYTES):
                self._session.flush()
                await turns.next()
        return view[at:]

    # --- after the end -----------------------------------------------------------------------------------

    def _drain(self, data: Buffer) -> None:
        """Discard input after the session ended.

        The session must read the socket until the client closes it: the kernel resets a connection that is closed
        with unread bytes, and the client would lose a close or close-ok in transit.
        """
        if self._unreadable or self._session.state is State.CLOSED:
            return
        try:
            for command in self._reader.feed(data):
                self._after_the_end(command)
        except WeirError:
            self._unreadable = True

    def _after_the_end(self, command: Command) -> None:
        """Handle a command after either side's close; only close and close-ok have an effect."""
        session = self._session
        if session.state is not State.CLOSING or command.channel:
            return
        if isinstance(command.method, connection.CloseOk):
            session.move(Event.GONE)
        elif isinstance(command.method, connection.Close):
            session.say(connection.CloseOk())

    async def _unless_ended(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work` or for the end of the session, because an ended session must read the socket."""
        waiting = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait([waiting, self._session.ending], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()

    # --- back-pressure -----------------------------------------------------------------------------------

    async def _room_for_the_rest(self) -> None:
        """Wait until the receive budget has room for the rest of all incomplete messages."""
        self.held_back = True
        try:
            if self._request_share.arriving:
                self._request_share.arrived()
            await self._unless_ended(self._request_share.wait_capacity(self._reader.announced))
        except TooManyError as crowded:
            self._session.fail(AmqpError(crowded.what, code=ReplyCode.RESOURCE_ERROR))
        self.held_back = False
        self._session.heartbeats.heard()

    async def _stored(self) -> None:
        """Wait until all publishes of this connection are stored.

        Until then a large message counts for the receive budget. Otherwise many connections together could have an
        unlimited number of large messages in memory.
        """
        self.held_back = True
        self._session.outbox.flush()
        with self._session.blocking:
            await self._unless_ended(self._session.load.wait_empty())
        self.held_back = False
        self._session.heartbeats.heard()

    async def _hold_back(self) -> None:
        """Pause reading until in-flight work is below its limits."""
        if not self._session.reads:
            return
        self._session.flush()
        self.held_back = True
        self._session.outbox.flush()
        with self._session.blocking:
            await self._unless_ended(self._session.load.wait_capacity())
        self.held_back = False
        self._session.heartbeats.heard()

    async def _let_rest(self) -> None:
        """Wait for each queue without capacity because of a quota, rate or memory limit."""
        touched, self._session.publishing.touched = self._session.publishing.touched, {}
        queues = [queue for queue in touched if queue.alive and not queue.has_capacity]
        if not queues:
            return
        self.held_back = True
        with self._session.blocking:
            for queue in queues:
                if queue.alive:
                    with suppress(WeirError):  # the next publish reports it
                        await self._unless_ended(queue.wait_capacity())
        self.held_back = False
        self._session.heartbeats.heard()


_REASON = "the broker cannot store more for now"


class Blocking:
    """Context of a paused session: sends connection.blocked after `blocked_after_s`, and unblocked at its end."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._timer: Timer | None = None
        self.blocked = False

    def __enter__(self) -> None:
        session = self._session
        self._timer = session.clock.call_later(session.limits.blocked_after_s, self._tell)

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        self.forget()
        if self.blocked:
            self.blocked = False
            if self._session.capable("connection.blocked"):
                self._session.say(connection.Unblocked())

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self.blocked = True
        self._session.services.metrics.blocked += 1
        if self._session.capable("connection.blocked"):
            self._session.say(connection.Blocked(_REASON))


#: Heartbeat intervals without input after which the client counts as dead.
_MISSED = 2.5


class Heartbeats:
    def __init__(self, clock: Clock, transport: Connection, say: Callable[[bytes], None]) -> None:
        self._clock = liveness(clock)
        self._transport = transport
        self._say = say
        #: The negotiated interval in seconds; 0: no heartbeats.
        self.interval_s = 0
        self.heard_at = self._clock.monotonic()
        self._said_at = self.heard_at

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    def beat(self, now: float) -> None:
        """Send a heartbeat twice per interval, unless unsent bytes wait for the client anyway."""
        if self.interval_s and now - self._said_at >= self.interval_s / 2 and not self._transport.unsent_bytes:
            self._said_at = now
            self._say(HEARTBEAT_FRAME)

    def missed(self, now: float) -> bool:
        return bool(self.interval_s) and now - self.heard_at > self.interval_s * _MISSED

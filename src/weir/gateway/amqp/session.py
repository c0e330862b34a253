"""One client's connection: what may come when, its channels, and how it ends.

Over its limits the session reads no further, so a client that floods, or that does not read what it is sent, is
held back by its own TCP window and costs nobody else.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from weir.broker.api import ConsumeRequest, Queue
from weir.gateway.amqp.blocking import Blocking
from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.consuming import ConsumerLink
from weir.gateway.amqp.credentials import Credentials
from weir.gateway.amqp.errors import Refusal, refusal_of, refuse
from weir.gateway.amqp.handshake import STEPS, HandshakeError, start
from weir.gateway.amqp.heartbeats import Heartbeats
from weir.gateway.amqp.kinds import check_consumable
from weir.gateway.amqp.listing import ListedSession
from weir.gateway.amqp.load import Load
from weir.gateway.amqp.publishing import Publishing
from weir.gateway.amqp.services import Services
from weir.gateway.amqp.settings import SessionLimits
from weir.gateway.amqp.states import NEXT, OPENING, READING, Event, State
from weir.gateway.amqp.taken import Taken
from weir.gateway.amqp.vhosts import VirtualHost
from weir.model.errors import (
    AmqpError,
    AmqpHeaderError,
    NetworkError,
    NotAuthenticatedError,
    QueueLockedError,
    QueueNotFoundError,
    TooManyError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Connection
from weir.runtime.log_context import log_about
from weir.runtime.outbox import Outbox
from weir.runtime.request_budget import RequestBudget, RequestShare
from weir.runtime.tasks import TaskScope
from weir.runtime.turns import UNIT_BYTES, Turns
from weir.wire.amqp.codes import ReplyCode
from weir.wire.amqp.frames import OVERHEAD_BYTES, PROTOCOL_HEADER, Role
from weir.wire.amqp.incoming import Command, CommandReader
from weir.wire.amqp.methods import Method, connection, encode_method
from weir.wire.amqp.methods import channel as channel_methods
from weir.wire.amqp.plain_acks import begins_with_ack, take_acks
from weir.wire.amqp.tables import NO_FIELDS, Table

log = logging.getLogger(__name__)

#: Publishes like the last one that cost as much as a unit of work.
_PLAIN_PER_UNIT = 4
#: What a channel's number may be.
MAX_CHANNEL = (1 << 16) - 1


class Session:
    """Serves one connection until it ends."""

    def __init__(
        self,
        services: Services,
        transport: Connection,
        *,
        limits: SessionLimits,
        cluster_name: str,
        address: tuple[str, int],
        secure: bool,
        delivery_budget: ByteBudget,
        request_budget: RequestBudget,
    ) -> None:
        clock = services.runtime.clock
        self.services = services
        self.clock = clock
        self.limits = limits
        self.cluster_name = cluster_name
        #: Where it came in, and whether by TLS.
        self.address = address
        self.secure = secure
        self.received_bytes = self.received_frames = 0
        self.state = State.HEADER
        #: Whose exclusive queues are whose: no other connection has the same.
        self.id = f"{transport.peer}#{services.runtime.rng.getrandbits(64):016x}"
        self.vhost: VirtualHost
        self.frame_max = limits.frame_max
        #: How many channels may be open; their numbers may be any.
        self.channel_max = limits.channel_max
        self.client_properties: Table = NO_FIELDS
        self.channels: dict[int, Channel] = {}
        self.outbox = Outbox(transport, clock)
        self.load = Load(limits)
        self.turns = Turns(clock)
        self.credentials = Credentials(services.broker, clock, transport.certificate, self._expired)
        self.publishing = Publishing(self)
        self.delivery_share = delivery_budget.share(limits.max_delivery_bytes)
        self.heartbeats = Heartbeats(clock, transport, self.outbox.say)
        self.blocking = Blocking(self)
        self.tasks = TaskScope(f"amqp {transport.peer}", on_failure=lambda _: self.abort())
        #: Channels on which something was settled in this turn, and whose messages these were.
        self.settling: dict[Channel, dict[Taken, None]] = {}
        #: Whether single messages were acknowledged, so that it is worth to look for more of that.
        self.acknowledges = False
        self._request_share = RequestShare(request_budget, clock)
        self._transport = transport
        self._reader = CommandReader(Role.SERVER, channel_max=0, max_body=limits.max_message_bytes)
        #: Channels that are being let go of: that is finished, however the session ends.
        self._releases: dict[asyncio.Task[None], None] = {}
        #: By number, what was let go of where a new channel may be opened.
        self._releasing: dict[int, asyncio.Task[None]] = {}
        self._came_at = clock.monotonic()
        self._held_back = False
        self._listed: ListedSession | None = None
        self._farewell: Refusal | None = None
        self._ended = asyncio.Event()

    # --- its life ----------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def role(self) -> str:
        return self.credentials.role

    @property
    def user(self) -> str:
        return self.credentials.user

    @property
    def consumer_count(self) -> int:
        return sum(len(channel.consumers) for channel in self.channels.values())

    def capable(self, capability: str) -> bool:
        """Whether the client says that it understands something."""
        known = self.client_properties.get("capabilities")
        return isinstance(known, Table) and known.get(capability) is True

    async def run(self) -> None:
        """Serve until the connection ends; never raises for anything that the client did."""
        log_about(connection=self.peer)
        self.services.metrics.connections += 1
        receiving = self.tasks.spawn(self._receive(), "receive")
        try:
            await self._ended.wait()
            if self.state is State.LEAVING:
                await self._leave()
            elif self.state is State.CLOSING:
                await self._say_goodbye(receiving)
        finally:
            self.services.metrics.connections -= 1
            self.move(Event.GONE)
            self.credentials.forget()
            if self._listed is not None:
                self.services.connections.remove(self._listed)
            self.blocking.forget()
            await self.tasks.close()
            await self._let_go()
            self.delivery_share.close()
            self._reader.forget()
            self._request_share.close()
            self._transport.close()

    def end(self, why: WeirError) -> None:
        """Take nothing more, finish what was taken, tell the client why, and end."""
        self.refuse(
            Refusal(
                ReplyCode.CONNECTION_FORCED,
                f"CONNECTION_FORCED - broker forced connection closure with reason '{why.what}'"[:255],
            )
        )

    def refuse(self, refusal: Refusal) -> None:
        """The connection is closed for this."""
        if self.state in READING:
            self._farewell = refusal
            self.flush()
            self.move(Event.ENDING)

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()
        self.move(Event.GONE)

    def hang_up(self, why: WeirError) -> None:
        """End without a word, but those that were said."""
        self.log_refusal(why)
        self.services.metrics.refused += 1
        self.outbox.flush()
        self.move(Event.GONE)

    def move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]
        if self.state not in READING:
            self._ended.set()

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        self.frame_max = self._reader.frame_max = frame_max
        self.channel_max = channel_max
        self._reader.channel_max = MAX_CHANNEL
        self.heartbeats.interval_s = heartbeat_s

    def opened(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self._listed = ListedSession(self)
        self.services.connections.add(self._listed)

    def overdue(self, now: float) -> str | None:
        """Why the server should end this session by force, if it should; sends heartbeats."""
        limits = self.limits
        stalled_at = self.outbox.stalled_at
        if stalled_at is not None and now - stalled_at > limits.stall_timeout_s:
            return "it does not read what it is sent"
        if self.state in OPENING:
            return "it never opened the connection" if now - self._came_at > limits.connect_timeout_s else None
        self.heartbeats.beat(now)
        if self._held_back or stalled_at is not None:
            self.heartbeats.heard()
            return None
        if self._request_share.late(now, self.heartbeats.heard_at):
            return "others wait, and it does not send the rest of its message"
        return "it missed its heartbeats" if self.heartbeats.missed(now) else None

    def log_refusal(self, refused: WeirError) -> None:
        log.warning("connection of %s is refused: %s", self.peer, refused)

    def _expired(self) -> None:
        log.info("connection of %s ends with its credentials", self.peer)
        self.end(NotAuthenticatedError("the credentials have expired"))

    async def _leave(self) -> None:
        """The client closes: all that it published is stored first, and its queues are free when it is told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_s):
                while not all(channel.idle for channel in self.channels.values()):
                    await self.turns.next()
                await self.publishing.settled()
        await self._let_go()
        self.say(connection.CloseOk())
        self.outbox.flush()

    async def _say_goodbye(self, receiving: "asyncio.Task[None]") -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_s):
                await self.publishing.settled()
        for channel in self.channels.values():
            if channel.confirms is not None:
                channel.confirms.tell()
        if self._farewell is not None:
            log.info("connection of %s is closed: %s", self.peer, self._farewell.text)
            self.say(connection.Close(*self._farewell))
        self.outbox.flush()
        await asyncio.wait([receiving], timeout=self.limits.linger_s)

    async def _let_go(self) -> None:
        """Close everything that the client had opened."""
        channels = list(self.channels.values())
        self.channels.clear()
        self.services.metrics.channels -= len(channels)
        for channel in channels:
            channel.begin_release()
        if self._releases:
            await asyncio.wait(list(self._releases))
        if hasattr(self, "vhost"):
            try:
                await self.vhost.queues.release(self.id)
            except WeirError as failed:
                log.warning("queues of %s are not released: %s", self.peer, failed)

    # --- receiving ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            while data := await self._transport.receive():
                self.heartbeats.heard()
                if self.state in READING:
                    await self._take(data)
                elif self.state is State.CLOSING:
                    self._look_for_agreement(data)
                data = b""  # an idle connection keeps no buffer
                if self._reader.announced > self._request_share.arriving:
                    await self._room_for_the_rest()
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        self.move(Event.GONE)

    async def _take(self, data: Buffer) -> None:
        """Take the commands in a receive buffer, as fast as the limits allow."""
        turns = self.turns
        self.services.metrics.bytes_in += len(data)
        self.received_bytes += len(data)
        turns.begin()
        try:
            if (self._reader.has_plain or self.acknowledges) and self.state is State.SERVING:
                begun, data = self._reader.resume(data)
                if not await self._take_all(begun):
                    return
                data = await self._take_acks(data)
                data = await self._take_plain(data)
            if not await self._take_all(self._reader.feed(data)):
                return
            if self.state is State.HEADER and self._reader.begun:
                self.move(Event.GREETED)
                self.say(start(self))
        except AmqpHeaderError as other:
            self.outbox.say(PROTOCOL_HEADER)
            self.hang_up(other)
            return
        except WeirError as bad:
            self._fail(bad)
            return
        finally:
            self.flush()
        if self._request_share.arriving and not self._reader.announced:
            self._request_share.arrived()
        if self.publishing.touched:
            await self._let_rest()
        await self.outbox.drain()
        await self.clock.sleep(0)  # the next buffer may be here already

    async def _take_all(self, commands: Iterable[Command]) -> bool:
        """Take commands; whether more may come."""
        turns = self.turns
        for command in commands:
            if self.state is State.SERVING:
                self._on_command(command)
            else:
                await self._on_opening(command)
            self.received_frames += 1
            if self.state not in READING:
                return False
            if self.load.full:
                await self._hold_back()
            body = command.body
            if turns.spend(1 if body is None else 1 + len(body) // UNIT_BYTES):
                self.flush()
                await turns.next()
        return self.state in READING

    async def _take_acks(self, data: memoryview) -> memoryview:
        """Take the acknowledgements of single messages that the buffer begins with; what is left of it."""
        turns = self.turns
        while begins_with_ack(data) and self.state is State.SERVING:
            number, tags, end = take_acks(data, 4 * max(1, turns.left))
            channel = self.channels.get(number)
            if not tags or channel is None or not channel.takes_plain:
                break
            data = data[end:]
            self.received_frames += len(tags)
            channel.take_acks(tags)
            if turns.spend(1 + len(tags) // _PLAIN_PER_UNIT):
                self.flush()
                await turns.next()
        return data if self.state in READING else data[:0]

    async def _take_plain(self, data: Buffer) -> memoryview:
        """Take the publishes that the buffer begins with and that are like the last one; what is left of it."""
        turns, view, at = self.turns, memoryview(data), 0
        while (plain := self._reader.plain_publishes()) is not None and self.state is State.SERVING:
            channel = self.channels.get(plain.channel)
            if channel is None or not channel.takes_plain:
                break
            before = at
            bodies, at = plain.take(
                view,
                at,
                count=max(1, 4 * turns.left),
                size=self.limits.max_publish_bytes,
                limit=min(self.limits.max_message_bytes, self.frame_max - OVERHEAD_BYTES),
            )
            if not bodies:
                break
            self.received_frames += 3 * len(bodies)
            channel.take_plain(plain, bodies)
            if self.load.full:
                await self._hold_back()
            if turns.spend(1 + len(bodies) // _PLAIN_PER_UNIT + (at - before) // UNIT_BYTES):
                self.flush()
                await turns.next()
        return view[at:] if self.state in READING else view[:0]

    def _fail(self, failure: WeirError, method: Method | None = None) -> None:
        self.services.metrics.refused += 1
        name = self.vhost.name if hasattr(self, "vhost") else ""
        self.refuse(refusal_of(failure, method, name, self.user))

    async def _on_opening(self, command: Command) -> None:
        method = command.method
        expected, step = STEPS.get(self.state, (None, None))
        if isinstance(method, connection.Close):
            self.move(Event.LEFT)
        elif expected is None or step is None or type(method) is not expected or command.channel:
            self.hang_up(HandshakeError(f"{method.name} is out of place"))
        else:
            try:
                await step(self, method)
            except HandshakeError as unknown:
                self.hang_up(unknown)
            except WeirError as bad:
                self._fail(bad, method)

    def _on_command(self, command: Command) -> None:
        number = command.channel
        channel = self.channels.get(number)
        if channel is not None:
            channel.take(command)
        elif number:
            self._on_new_channel(command)
        else:
            self._on_connection(command.method)

    def _on_connection(self, method: Method) -> None:
        self.flush()
        if isinstance(method, connection.Close):
            self.move(Event.LEFT)
        elif isinstance(method, connection.UpdateSecret):
            self.tasks.spawn(self._update_secret(method), "update-secret")
        elif not isinstance(method, connection.CloseOk):
            self._fail(refuse(ReplyCode.COMMAND_INVALID, "unexpected method in connection state running"), method)

    async def _update_secret(self, method: connection.UpdateSecret) -> None:
        try:
            await self.credentials.renew(method.new_secret)
        except WeirError as refused:
            self.log_refusal(refused)
            self._fail(refuse(ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends"), method)
        else:
            self.say(connection.UpdateSecretOk())

    def _on_new_channel(self, command: Command) -> None:
        method = command.method
        if isinstance(method, channel_methods.CloseOk):
            return  # of a close that crossed the client's own
        if not isinstance(method, channel_methods.Open):
            self._fail(refuse(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'"), method)
            return
        if len(self.channels) >= self.channel_max:
            most = self.channel_max
            what = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            self._fail(refuse(ReplyCode.NOT_ALLOWED, what))
            return
        self.flush()
        channel = self.channels[command.channel] = Channel(self, command.channel)
        self.services.metrics.channels += 1
        before = self._releasing.pop(command.channel, None)
        if before is None or before.done():
            channel.say(channel_methods.OpenOk())
        else:
            channel.wait_for(method, _after(before))

    def forget_channel(self, channel: Channel) -> None:
        """It is closed, and both sides know."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self.services.metrics.channels -= 1
            self._reader.forget_channel(channel.number)
            if channel.released is not None and not channel.released.done():
                self._releasing[channel.number] = channel.released

    def begin_release(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let go of a channel, whatever becomes of the session meanwhile."""
        task = asyncio.get_running_loop().create_task(work, name=f"amqp {self.peer}/release")
        self._releases[task] = None
        task.add_done_callback(lambda done: self._releases.pop(done, None))
        return task

    def _look_for_agreement(self, data: Buffer) -> None:
        """This side closes: all that counts is the client's word that it knows."""
        try:
            for command in self._reader.feed(data):
                if isinstance(command.method, connection.CloseOk):
                    self.move(Event.GONE)
                elif isinstance(command.method, connection.Close):
                    self.say(connection.CloseOk())
        except WeirError:
            self.move(Event.GONE)

    # --- holding back ------------------------------------------------------------------------------------

    async def _room_for_the_rest(self) -> None:
        """Of messages that have not come whole: they are read on when there is room for all of them."""
        self._held_back = True
        try:
            if self._request_share.arriving:
                self._request_share.arrived()
            await self._request_share.wait_capacity(self._reader.announced)
        except TooManyError as crowded:
            self._fail(AmqpError(crowded.what, code=ReplyCode.RESOURCE_ERROR))
        self._held_back = False
        self.heartbeats.heard()

    async def _hold_back(self) -> None:
        """Too much is under way."""
        self.flush()
        self._held_back = True
        self.outbox.flush()
        with self.blocking:
            await self.load.wait_capacity()
        self._held_back = False
        self.heartbeats.heard()

    async def _let_rest(self) -> None:
        """Wait for each queue that quota, rate or memory say should get no more for now."""
        queues, self.publishing.touched = self.publishing.touched, {}
        self._held_back = True
        with self.blocking:
            for queue in queues:
                if queue.alive:
                    with suppress(WeirError):  # whoever publishes next learns of it
                        await queue.wait_capacity()
        self._held_back = False
        self.heartbeats.heard()

    # --- for channels ------------------------------------------------------------------------------------

    def say(self, method: Method) -> None:
        self.outbox.say(encode_method(0, method))

    def flush(self) -> None:
        """Tell what was settled, and hand over what was published."""
        if self.settling:
            self.settle()
            # Consumers with credit again ask for messages before there are more: they may be of a higher priority.
            asyncio.get_running_loop().call_soon(self.publishing.flush)
        else:
            self.publishing.flush()

    def settle(self) -> None:
        settling, self.settling = self.settling, {}
        for channel, links in settling.items():
            for taken in links:
                taken.settle()
            channel.settled(links)

    async def get_queue(self, name: str) -> Queue:
        """The queue, which may be this connection's own; QueueNotFoundError, QueueLockedError."""
        if not name:
            raise QueueNotFoundError("no queue ''")
        return await self.vhost.queues.get(self.role, name, connection=self.id)

    async def open_queue(self, name: str) -> Queue:
        """The queue that messages are routed to, whosever it is; QueueNotFoundError."""
        return await self.vhost.queues.look(name)

    async def consume(self, channel: Channel, name: str, request: ConsumeRequest) -> ConsumerLink:
        """NotAuthorisedError, QueueNotFoundError, QueueLockedError, QueueArgumentError; 403 if somebody has it
        alone."""
        queue = await self.get_queue(name)
        check_consumable(queue, request, self.vhost.name, by_channel=channel.global_prefetch > 0)
        try:
            if request.exclusive and queue.rules.single_active:
                raise QueueLockedError("one is active at a time, and none of them alone")
            consumer = await queue.consume(request, share=self.delivery_share)
        except QueueLockedError:
            what = f"queue '{name}' in vhost '{self.vhost.name}' in exclusive use"
            raise refuse(ReplyCode.ACCESS_REFUSED, what) from None
        return ConsumerLink(channel, queue, consumer, request)


async def _after(released: "asyncio.Task[None]") -> Method:
    """A channel is opened where another of its number is being let go of."""
    await asyncio.wait([released])
    return channel_methods.OpenOk()

"""AMQP session: one client connection with its protocol states, channels, shutdown and connection list entry.

Over its limits the session stops reading. TCP back-pressure then slows down a client that floods the broker or
does not read its deliveries, and other clients are not affected.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from weir.broker.api.connections import ChannelConsumer, ChannelInfo, ConnectionInfo, ConnectionTraffic
from weir.broker.api.queues import ConsumeRequest, Queue
from weir.gateway.amqp.channel import Channel
from weir.gateway.amqp.consumers import ConsumerLink
from weir.gateway.amqp.context import Services
from weir.gateway.amqp.errors import Refusal, check_consumable, refusal_of, refuse
from weir.gateway.amqp.handshake import (
    NEXT,
    OPENING,
    READING,
    STEPS,
    Credentials,
    Event,
    HandshakeError,
    State,
    VirtualHost,
)
from weir.gateway.amqp.in_flight import Load
from weir.gateway.amqp.inbound import Blocking, Heartbeats, Receiving
from weir.gateway.amqp.publisher import Publishing
from weir.gateway.amqp.settings import SessionLimits
from weir.gateway.amqp.unacked import Taken
from weir.model.errors import NotAuthenticatedError, QueueLockedError, QueueNotFoundError, WeirError
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import Connection
from weir.runtime.server import Outbox
from weir.runtime.tasks import TaskScope, Turns, log_about
from weir.wire.amqp.command_reader import Command
from weir.wire.amqp.frames import ReplyCode, reply_text
from weir.wire.amqp.methods import Method, connection, encode_method
from weir.wire.amqp.methods import channel as channel_methods
from weir.wire.amqp.tables import NO_FIELDS, Table, plain_fields
from weir.wire.first_bytes import ServedPort


class ListedSession:
    """The session's entry in the connection directory; implements `api.ClientConnection`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        host, _, port = session.peer.rpartition(":")
        here, here_port = session.address
        self.info = ConnectionInfo(
            name=f"{session.peer} -> {here}:{here_port}",
            user=session.user,
            role=session.role,
            namespace=session.vhost.namespace,
            vhost=session.vhost.name,
            peer_host=host.strip("[]"),
            peer_port=int(port) if port.isdigit() else 0,
            host=here,
            port=here_port,
            tls=session.secure,
            auth_mechanism=session.credentials.mechanism,
            client_properties=plain_fields(session.client_properties),
            connected_ms=session.clock.wall_ms(),
            id=session.id,
            heartbeat_s=session.heartbeats.interval_s,
            frame_max=session.frame_max,
            channel_max=session.channel_max,
        )

    @property
    def traffic(self) -> ConnectionTraffic:
        session = self._session
        state = "closing" if session.state is not State.SERVING else "running"
        if session.blocking.blocked:
            state = "blocked"
        return ConnectionTraffic(
            received_bytes=session.received_bytes,
            sent_bytes=session.outbox.sent_bytes,
            received_frames=session.received_frames,
            sent_frames=session.outbox.writes,
            state=state,
        )

    def channels(self) -> Sequence[ChannelInfo]:
        return [_channel(each) for _, each in sorted(self._session.channels.items())]

    def close(self, reason: str) -> None:
        code = ReplyCode.CONNECTION_FORCED
        self._session.refuse(Refusal(code, reply_text(code, reason)))


def _channel(channel: Channel) -> ChannelInfo:
    confirms, transaction = channel.confirms, channel.transaction
    return ChannelInfo(
        channel.number,
        tuple(
            ChannelConsumer(
                link.tag,
                link.queue.declaration.name,
                link.request.no_ack,
                link.request.exclusive,
                link.request.prefetch,
                link.request.priority,
                arguments=link.request.arguments,
            )
            for link in channel.consumers.values()
        ),
        unacked=len(channel.unacked),
        unconfirmed=0 if confirms is None else confirms.outstanding,
        uncommitted_messages=0 if transaction is None else len(transaction.messages),
        uncommitted_acks=0 if transaction is None else transaction.settlements,
        prefetch=channel.prefetch,
        global_prefetch=channel.global_prefetch,
        confirm=confirms is not None,
        transactional=transaction is not None,
        published=channel.published,
        confirmed=0 if confirms is None else confirms.next - 1 - confirms.outstanding,
        returned=channel.returned,
        delivered=channel.delivered,
        acked=channel.acked,
        redelivered=channel.redelivered,
    )


log = logging.getLogger(__name__)

#: Work units for the release of a channel; closing its consumers counts separately.
_RELEASE_UNITS = 16


class Session:
    """Serves one connection until it ends."""

    def __init__(
        self,
        services: Services,
        transport: Connection,
        *,
        limits: SessionLimits,
        cluster_name: str,
        served: ServedPort,
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
        self.served = served
        #: The listener's address, and whether it uses TLS.
        self.address = address
        self.secure = secure
        self.received_bytes = self.received_frames = 0
        self.state = State.HEADER
        #: Whether the session accepts commands.
        self.reads = True
        #: Unique ID of the connection; it owns the exclusive queues declared under it.
        self.id = f"{transport.peer}#{services.runtime.rng.getrandbits(64):016x}"
        self.vhost: VirtualHost
        self.frame_max = limits.frame_max
        #: How many channels may be open; their numbers may be any.
        self.channel_max = limits.channel_max
        self.client_properties: Table = NO_FIELDS
        self.channels: dict[int, Channel] = {}
        self.outbox = Outbox(transport, clock, services.metrics)
        self.load = Load(limits)
        self.turns = Turns(clock)
        self.credentials = Credentials(services.broker, clock, transport.certificate, self._expired)
        self.publishing = Publishing(self)
        self.delivery_share = delivery_budget.share(limits.max_delivery_bytes)
        self.heartbeats = Heartbeats(clock, transport, self.outbox.say)
        self.blocking = Blocking(self)
        self.tasks = TaskScope(f"amqp {transport.peer}", on_failure=lambda _: self.abort())
        #: Channels with settlements in this turn, and the consumers or getters concerned.
        self.settling: dict[Channel, dict[Taken, None]] = {}
        #: Whether the client acknowledges single messages, so that the fast path for runs of acks pays off.
        self.acknowledges = False
        self._transport = transport
        self.receiving = Receiving(self, transport, request_budget)
        #: Releases of closed channels in progress; they finish even if the session ends first.
        self._releases: dict[asyncio.Task[None], None] = {}
        #: The same by channel number, because a new channel with that number waits for its release.
        self._releasing: dict[int, asyncio.Task[None]] = {}
        self._came_at = liveness(clock).monotonic()
        self._listed: ListedSession | None = None
        self._farewell: Refusal | None = None
        #: Done when the session takes no more commands.
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- life cycle --------------------------------------------------------------------------------------

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
        """Whether the client announced this capability."""
        known = self.client_properties.get("capabilities")
        return isinstance(known, Table) and known.get(capability) is True

    async def run(self) -> None:
        """Serve until the connection ends; no input of the client makes it raise."""
        log_about(connection=self.peer)
        self.services.metrics.connections += 1
        receiving = self.tasks.spawn(self.receiving.run(), "receive")
        try:
            await asyncio.wait([self.ending])
            self.receiving.stop_keeping()
            if self.state is State.LEAVING:
                await self._leave(receiving)
            elif self.state is State.CLOSING:
                await self._say_goodbye(receiving)
        finally:
            self.services.metrics.connections -= 1
            self.move(Event.GONE)
            self.credentials.forget()
            self._unlist()
            self.blocking.forget()
            await self.tasks.close()
            await self._let_go()
            self.delivery_share.close()
            self.receiving.forget()
            self._transport.close()

    def end(self, why: WeirError) -> None:
        """Stop accepting commands, finish the accepted ones, and send connection.close with the reason."""
        self.refuse(
            Refusal(
                ReplyCode.CONNECTION_FORCED,
                f"CONNECTION_FORCED - broker forced connection closure with reason '{why.what}'"[:255],
            )
        )

    def refuse(self, refusal: Refusal) -> None:
        """Start to close the connection with this refusal."""
        if self.state in READING:
            self._farewell = refusal
            self.flush()
            self.move(Event.ENDING)

    def abort(self) -> None:
        """Abort the connection immediately."""
        self._transport.abort()
        self.move(Event.GONE)

    def hang_up(self, why: WeirError) -> None:
        """Close the socket without connection.close, after pending output is flushed."""
        self.log_refusal(why)
        self.services.metrics.refused += 1
        self.outbox.flush()
        self.move(Event.GONE)

    def move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]
        self.reads = self.state in READING
        if not self.reads and not self.ending.done():
            self.ending.set_result(None)

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        self.frame_max, self.channel_max = frame_max, channel_max
        self.receiving.tuned(frame_max)
        self.heartbeats.interval_s = heartbeat_s

    def opened(self, vhost: VirtualHost) -> None:
        self.vhost = vhost
        self._listed = ListedSession(self)
        self.services.connections.add(self._listed)

    def overdue(self, now: float) -> str | None:
        """Send heartbeats if due; return why the server must abort this session, or None."""
        limits = self.limits
        stalled_at = self.outbox.stalled_at
        if stalled_at is not None and now - stalled_at > limits.stall_timeout_s:
            return "the client does not read its deliveries"
        if not self.reads:
            return None
        if self.state in OPENING:
            return "the AMQP handshake timed out" if now - self._came_at > limits.connect_timeout_s else None
        self.heartbeats.beat(now)
        if self.receiving.held_back or stalled_at is not None:
            self.heartbeats.heard()
            return None
        if self.receiving.late(now):
            return "receive memory is short, and the client does not send the rest of its message"
        return "the client missed its heartbeats" if self.heartbeats.missed(now) else None

    def log_refusal(self, refused: WeirError) -> None:
        log.warning("connection of %s refused: %s", self.peer, refused)

    def _expired(self) -> None:
        log.info("connection of %s closed: its credentials expired", self.peer)
        self.end(NotAuthenticatedError("the credentials have expired"))

    def _unlist(self) -> None:
        listed, self._listed = self._listed, None
        if listed is not None:
            self.services.connections.remove(listed)

    async def _leave(self, receiving: "asyncio.Task[None]") -> None:
        """Answer the client's connection.close after its publishes are stored and its queues released.

        Then wait for the client to close the socket; read and discard all input until then.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_s):
                while not all(channel.idle for channel in self.channels.values()):
                    await self.turns.next()
                await self.publishing.settled()
        await self._let_go()
        self._unlist()
        self.say(connection.CloseOk())
        self.outbox.flush()
        await asyncio.wait([receiving], timeout=self.limits.linger_s)

    async def _say_goodbye(self, receiving: "asyncio.Task[None]") -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_s):
                await self.publishing.settled()
        for channel in self.channels.values():
            if channel.confirms is not None:
                channel.confirms.tell()
        if self._farewell is not None:
            log.info("connection of %s closed: %s", self.peer, self._farewell.text)
            self.say(connection.Close(*self._farewell))
        self.outbox.flush()
        await asyncio.wait([receiving], timeout=self.limits.linger_s)

    async def _let_go(self) -> None:
        """Close the client's channels, and release its exclusive queues."""
        channels = list(self.channels.values())
        self.channels.clear()
        self.services.metrics.channels -= len(channels)
        for channel in channels:
            channel.begin_release()
            await self.turns.pause(_RELEASE_UNITS)
        if self._releases:
            await asyncio.wait(list(self._releases))
        if hasattr(self, "vhost"):
            try:
                await self.vhost.queues.release(self.id)
            except WeirError as failed:
                log.warning("cannot release queues of %s: %s", self.peer, failed)

    def fail(self, failure: WeirError, method: Method | None = None) -> None:
        self.services.metrics.refused += 1
        name = self.vhost.name if hasattr(self, "vhost") else ""
        self.refuse(refusal_of(failure, method, name, self.user))

    async def on_opening(self, command: Command) -> None:
        method = command.method
        expected, step = STEPS.get(self.state, (None, None))
        if isinstance(method, connection.Close):
            self.move(Event.LEFT)
        elif expected is None or step is None or type(method) is not expected or command.channel:
            self.hang_up(HandshakeError(f"unexpected method {method.name} during the handshake"))
        else:
            try:
                await step(self, method)
            except HandshakeError as unknown:
                self.hang_up(unknown)
            except WeirError as bad:
                self.fail(bad, method)

    def on_command(self, command: Command) -> None:
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
            self.fail(refuse(ReplyCode.COMMAND_INVALID, "unexpected method in connection state running"), method)

    async def _update_secret(self, method: connection.UpdateSecret) -> None:
        try:
            await self.credentials.renew(method.new_secret)
        except WeirError as refused:
            self.log_refusal(refused)
            self.fail(refuse(ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends"), method)
        else:
            self.say(connection.UpdateSecretOk())

    def _on_new_channel(self, command: Command) -> None:
        method = command.method
        if isinstance(method, channel_methods.CloseOk):
            return  # of a close that crossed the client's own
        if not isinstance(method, channel_methods.Open):
            self.fail(refuse(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'"), method)
            return
        if len(self.channels) >= self.channel_max:
            most = self.channel_max
            what = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            self.fail(refuse(ReplyCode.NOT_ALLOWED, what))
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
        """Remove a channel after both sides have closed it."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self.services.metrics.channels -= 1
            self.receiving.forget_channel(channel.number)
            if channel.released is not None and not channel.released.done():
                self._releasing[channel.number] = channel.released

    def begin_release(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Release a channel in a task that outlives the session."""
        task = asyncio.get_running_loop().create_task(work, name=f"amqp {self.peer}/release")
        self._releases[task] = None
        task.add_done_callback(lambda done: self._releases.pop(done, None))
        return task

    # --- for channels ------------------------------------------------------------------------------------

    def say(self, method: Method) -> None:
        self.outbox.say(encode_method(0, method))

    def flush(self) -> None:
        """Send collected settlements and publishes to their queues."""
        if self.settling:
            self.settle()
            if self.publishing.has_taken:
                # Consumers with new credit fetch first; new publishes, maybe of higher priority, follow.
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
        """Open a queue for this connection, including its exclusive ones; QueueNotFoundError, QueueLockedError."""
        if not name:
            raise QueueNotFoundError("no queue ''")
        return await self.vhost.queues.get(self.role, name, connection=self.id)

    async def open_queue(self, name: str) -> Queue:
        """Open a queue as a routing target, even another connection's exclusive one; QueueNotFoundError."""
        return await self.vhost.queues.look(name)

    async def consume(self, channel: Channel, name: str, request: ConsumeRequest) -> ConsumerLink:
        """Add a consumer to a queue. Raises NotAuthorisedError, QueueNotFoundError, QueueLockedError,
        QueueArgumentError; 403 if another consumer has exclusive access."""
        queue = await self.get_queue(name)
        check_consumable(queue, request, self.vhost.name, by_channel=channel.global_prefetch > 0)
        try:
            if request.exclusive and queue.rules.single_active:
                raise QueueLockedError("a queue with a single active consumer has no exclusive consumers")
            consumer = await queue.consume(request, share=self.delivery_share)
        except QueueLockedError:
            what = f"queue '{name}' in vhost '{self.vhost.name}' in exclusive use"
            raise refuse(ReplyCode.ACCESS_REFUSED, what) from None
        return ConsumerLink(channel, queue, consumer, request)


async def _after(released: "asyncio.Task[None]") -> Method:
    """Open a channel after the release of the previous one with the same number."""
    await asyncio.wait([released])
    return channel_methods.OpenOk()

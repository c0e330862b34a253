"""One client's connection: receives commands, dispatches them to handlers, and sends the responses.

Above its limits the session stops reading, so TCP back-pressure slows a client that floods or does not read its
responses, at no cost to others.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from weir.broker.api.broker import Broker, Owner, TopicLists
from weir.broker.api.schemas import Schemas
from weir.gateway.pulsar.authentication import Credentials
from weir.gateway.pulsar.command_table import HANDLERS, NEXT, READING, Event, State, Way
from weir.gateway.pulsar.consumers import ConsumerLink
from weir.gateway.pulsar.errors import code_of, text_of
from weir.gateway.pulsar.in_flight import Load
from weir.gateway.pulsar.links import Links
from weir.gateway.pulsar.lookup import BrokerUrls, Watch, urls_of
from weir.gateway.pulsar.producers import ProducerLink
from weir.gateway.pulsar.settings import PulsarMetrics, SessionLimits
from weir.model.errors import (
    NetworkError,
    NotAllowedError,
    NotOwnerError,
    TooManyError,
    UnknownVersionError,
    WeirError,
    WireError,
    WrongPortError,
)
from weir.model.ids import Buffer
from weir.model.topics import TopicName
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import ByteBudget, RequestBudget, RequestShare
from weir.runtime.interfaces import Clock, Connection
from weir.runtime.server import Outbox
from weir.runtime.tasks import OPEN_UNITS, UNIT_BYTES, TaskScope, Turns, log_about
from weir.wire.first_bytes import ServedPort, answer_to
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Type
from weir.wire.pulsar.fast_frames import PING
from weir.wire.pulsar.frames import (
    FRAME_PADDING_BYTES,
    NO_REQUEST,
    Frame,
    decode_frame,
    encode_command,
    refusal,
    splitter,
)
from weir.wire.pulsar.proto import Message

log = logging.getLogger(__name__)

#: The additional cost of a command that runs in its own task, in units of work.
_TASK_UNITS = 8
_SEND = Type.SEND
#: The first protocol version with CLOSE_PRODUCER and CLOSE_CONSUMER from the broker.
_CLOSES_SINCE = 5


@dataclass(frozen=True, slots=True)
class Services:
    """The services that all sessions share."""

    broker: Broker
    schemas: Schemas
    lists: TopicLists
    #: Bytes of delivered messages that clients have not read, over all sessions.
    delivery_budget: ByteBudget
    #: Bytes of partly received frames, over all sessions.
    request_budget: RequestBudget
    metrics: PulsarMetrics


class Session:
    """Serves one connection until it ends. `service_url`: the URL of this listener for clients."""

    def __init__(
        self,
        services: Services,
        connection: Connection,
        *,
        clock: Clock,
        limits: SessionLimits,
        service_url: str,
        served: ServedPort,
    ) -> None:
        self.broker = services.broker
        self.services = services
        self.clock = clock
        self.limits = limits
        self.service_url = service_url
        self._served = served
        self.state = State.CONNECTING
        self.outbox = Outbox(connection, clock, services.metrics)
        self.load = Load(limits)
        self.turns = Turns(clock)
        self._request_share = RequestShare(services.request_budget, clock)
        self.delivery_share = services.delivery_budget.share(limits.max_delivery_bytes)
        self.credentials = Credentials(self)
        #: The features that the client supports; CONNECT sets them.
        self.features = api.FeatureFlags()
        self.client_version = ""
        self.protocol_version = 0
        self.producers: Links[ProducerLink] = Links("producer", limits.max_links, self._over_limit)
        self.consumers: Links[ConsumerLink] = Links("consumer", limits.max_links, self._over_limit)
        self.watches: Links[Watch] = Links("watcher", -(-limits.max_links // 10), self._over_limit)
        #: Serializes topic lists, since each reads all names of a namespace.
        self.listing = asyncio.Lock()
        self.tasks = TaskScope(f"pulsar {connection.peer}", on_failure=lambda _: self.abort())
        #: Producers with sends in the current receive buffer.
        self.senders: dict[ProducerLink, None] = {}
        #: The producer that sent last.
        self.sender: ProducerLink | None = None
        self._connection = connection
        self._splitter = splitter(limits.max_connect_bytes)
        self._living = liveness(clock)
        self._heard_at = self._living.monotonic()
        self._pinged = False
        self._told_limit = False
        self._held_back = False  # not reading, because of the load or a throttled producer
        self._farewell: WeirError | None = None
        self._ended = asyncio.Event()

    # --- lifecycle ---------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def certificate(self) -> bytes | None:
        return self._connection.certificate

    @property
    def role(self) -> str:
        return self.credentials.role

    async def run(self) -> None:
        """Serve until the connection ends; never raises because of the client's input."""
        log_about(connection=self.peer)
        self.services.metrics.connections += 1
        receiving = self.tasks.spawn(self._receive(), "receive")
        try:
            await self._ended.wait()
            if self.state is State.CLOSING:
                await self._say_goodbye(receiving)
        finally:
            self.services.metrics.connections -= 1
            self._move(Event.GONE)
            self.credentials.forget()
            await self.tasks.close()
            await self._let_go()
            self.delivery_share.close()
            self._splitter.forget()
            self._request_share.close()
            self._connection.close()

    def end(self, why: WeirError) -> None:
        """Accept no more commands, finish the accepted ones, send the reason to the client, and close."""
        self._farewell = self._farewell or why
        self._move(Event.ENDING)

    def abort(self) -> None:
        """Close immediately."""
        self._connection.abort()
        self._move(Event.GONE)

    def connected(self) -> None:
        """Start serving after authentication."""
        self._move(Event.CONNECTED)
        self._splitter.limit = self.limits.max_message_bytes + FRAME_PADDING_BYTES

    def overdue(self, now: float) -> str | None:
        """The reason to abort this session, or None; pings an idle client."""
        reason = self._overdue(now)
        if reason is None:
            self._tell_ended_topics()
        return reason

    def _overdue(self, now: float) -> str | None:
        limits, silent_s = self.limits, now - self._heard_at
        stalled_at = self.outbox.stalled_at
        if stalled_at is not None and now - stalled_at > limits.stall_timeout_s:
            return "the client does not read its messages"
        if self.state is State.CONNECTING:
            return "the client did not send CONNECT in time" if silent_s > limits.connect_timeout_s else None
        if self._held_back or stalled_at is not None:
            return None
        if self._request_share.late(now, self._heard_at):
            return "other clients wait for memory, and this client does not send the rest of its command"
        if silent_s > limits.idle_timeout_s / 2 and not self._pinged:
            self._pinged = True
            self.outbox.say(PING)
        return "the client does not answer pings" if silent_s > limits.idle_timeout_s else None

    def _tell_ended_topics(self) -> None:
        """Notify consumers of terminated topics periodically, since no client waits for it. Only the Java client
        supports the command; the C++ client and those built on it treat it as a broken connection."""
        if self.state is State.SERVING and self.client_version.startswith("Pulsar-Java"):
            for consumer in self.consumers:
                consumer.tell_the_end()

    def _move(self, event: Event) -> None:
        self.state = NEXT[self.state][event]
        if self.state not in READING:
            self._ended.set()

    async def _say_goodbye(self, receiving: "asyncio.Task[None]") -> None:
        limits = self.limits
        try:
            async with asyncio.timeout(limits.settle_s):
                await self.load.settled()
        except TimeoutError:
            pass
        if self._farewell is not None:
            self.answer(error_frame(self._farewell))
        self.outbox.flush()
        await asyncio.wait([receiving], timeout=limits.linger_s)

    async def _let_go(self) -> None:
        """Close all producers and consumers of the client."""
        producers, consumers = self.producers.clear(), self.consumers.clear()
        lost = self._farewell is None  # otherwise the broker closes the connection
        failures = await self.turns.run_all((link.close() for link in producers), OPEN_UNITS)
        failures += await self.turns.run_all((link.close(lost=lost) for link in consumers), OPEN_UNITS)
        for failed in failures:
            log.warning("a producer or consumer of %s did not close: %s", self.peer, failed)

    # --- other brokers -----------------------------------------------------------------------------------

    def urls_of(self, owner: Owner, listener: str = "") -> BrokerUrls:
        """The URLs of a broker for this client; NotOwnerError if it has none, NotAllowedError if it has no
        listener of that name."""
        return urls_of(owner, self.service_url, listener)

    def tell_closed(self, said: "api.CommandCloseProducer | api.CommandCloseConsumer", topic: TopicName) -> None:
        """Notify the client that the broker closed a producer or consumer, with the URL of the topic's new owner:
        the client reconnects there without a lookup."""
        if self.protocol_version < _CLOSES_SINCE:  # the client only notices the end of the connection
            self.abort()
            return
        owner, urls = self.broker.owner_now(topic), BrokerUrls()
        if not owner.here:
            with suppress(NotOwnerError):  # the client looks up the topic at any broker
                urls = self.urls_of(owner)
        if urls.plain:
            said.assignedBrokerServiceUrl = urls.plain
        if urls.tls:
            said.assignedBrokerServiceUrlTls = urls.tls
        self.outbox.say(encode_command(said))

    # --- receiving ---------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        first = True
        try:
            while data := await self._connection.receive():
                self._heard_at = self._living.monotonic()
                self._pinged = False
                if first:
                    first = False
                    if (wrong := self._served.refusal(data)) is not None:
                        self._refuse_port(data, wrong)
                if self.state in READING:
                    await self._take(data)
                data = b""  # an idle connection keeps no buffer
                if self._splitter.announced > self._request_share.arriving:
                    await self._room_for_the_rest()
        except NetworkError as lost:
            log.debug("connection of %s broke: %s", self.peer, lost)
        self._move(Event.GONE)

    def _refuse_port(self, first: Buffer, why: WrongPortError) -> None:
        log.warning("connection of %s is closed: %s", self.peer, why)
        self.services.metrics.refused += 1
        answer = answer_to(first, why)
        if answer:
            self.answer(answer)
            self._move(Event.ENDING)
        else:
            self.end(why)

    async def _take(self, data: Buffer) -> None:
        """Process the commands in a receive buffer, as fast as the limits allow."""
        self.services.metrics.bytes_in += len(data)
        self.turns.begin()
        try:
            torn, data = self._splitter.complete(data)
            if torn is not None:
                await self._take_frame(torn)
                if self.state not in READING:
                    return
            data = await self._take_plain(data)
            for body in self._splitter.feed(data):
                await self._take_frame(body)
                if self.state not in READING:
                    return
        except WireError as bad:
            log.warning("connection of %s is closed: %s", self.peer, bad)
            self.services.metrics.refused += 1
            self.end(bad)
            return
        finally:
            self._publish()
        if self.senders:
            await self._let_rest()
        await self.outbox.drain()
        await self.clock.sleep(0)  # the next buffer may be here already

    async def _take_frame(self, body: memoryview) -> None:
        if self._request_share.arriving:
            self._request_share.arrived()
        work = self._on_frame(body)
        if work is not None:
            await work
        if self.load.full:
            await self._hold_back()
        if self.turns.spend(1 + len(body) // UNIT_BYTES):
            self._publish()
            await self.turns.next()

    async def _take_plain(self, data: Buffer) -> Buffer:
        """Process plain sends of the last producer at the start of the buffer; returns the rest of the buffer."""
        sender, turns = self.sender, self.turns
        view, at = memoryview(data), 0
        if sender is None or not self._splitter.at_boundary:
            return view
        while self.producers.get(sender.producer_id) is sender and self.state in READING:
            before = at
            count, at = sender.take_plain(view, at, count=max(1, turns.left), limit=self._splitter.limit)
            if not count:
                break
            self._count(_SEND, count)
            if self.load.full:
                await self._hold_back()
            if turns.spend(count + (at - before) // UNIT_BYTES):
                self._publish()
                await turns.next()
        return view[at:] if self.state in READING else b""

    def _publish(self) -> None:
        """Publish the queued sends of the current receive buffer."""
        for sender in self.senders:
            sender.publish()

    async def _room_for_the_rest(self) -> None:
        """Wait for capacity for the whole of a partly received frame before reading on."""
        self._held_back = True
        try:
            await self._request_share.wait_capacity(self._splitter.announced)
        except TooManyError as crowded:
            self.end(crowded)
        self._held_back = False
        self._heard_at = self._living.monotonic()

    async def _hold_back(self) -> None:
        self._publish()
        self._held_back = True
        self.outbox.flush()
        await self.load.wait_capacity()
        self._held_back = False
        self._heard_at = self._living.monotonic()

    async def _let_rest(self) -> None:
        """Wait for the producers that a backlog quota, a publish rate or memory throttles."""
        senders, self.senders = self.senders, {}
        self._held_back = True
        for sender in senders:
            await sender.wait_capacity()
        self._held_back = False
        self._heard_at = self._living.monotonic()

    def _on_frame(self, body: memoryview) -> Coroutine[Any, Any, None] | None:
        try:
            frame = decode_frame(body)
        except UnknownVersionError as unknown:  # a command of a later protocol version; the framing is intact
            self.answer(error_frame(unknown))
            return None
        self._count(frame.type, 1)
        if frame.message is None and self.senders:
            self._publish()  # keep the order: earlier sends come before this command
        handler = HANDLERS.get(frame.type)
        if handler is None or handler.state is not self.state:
            name = COMMANDS[frame.type].name
            self._refuse(frame, NotAllowedError(f"{name} is not allowed while the session {self.state.value}"))
            if handler is None or self.state is State.CONNECTING:
                raise WireError(f"unexpected command {name}")
            return None
        if handler.way is not Way.AT_ONCE:
            work = self._work(frame, handler.run(self, frame.command))
            if handler.way is Way.IN_TURN:
                return work
            self.load.request()
            self.turns.spend(_TASK_UNITS)
            self.tasks.spawn(work, COMMANDS[frame.type].name).add_done_callback(self._worked)
            return None
        try:
            if frame.message is None:
                answer = handler.run(self, frame.command)
            else:
                answer = handler.run(self, frame.command, frame.message)
            if answer is not None:
                if isinstance(answer, GeneratorType):
                    return self._work(frame, self.turns.through(answer))
                self.answer(answer)
        except Exception as failure:
            self._refuse(frame, failure)
        return None

    async def _work(self, frame: Frame, work: Coroutine[Any, Any, Message | bytes | None]) -> None:
        try:
            answer = await work
        except Exception as failure:
            self._refuse(frame, failure)
        else:
            if answer is not None:
                self.answer(answer)

    def _worked(self, _task: "asyncio.Task[None]") -> None:
        self.load.answered()

    def _count(self, command: int, count: int) -> None:
        requests = self.services.metrics.requests
        requests[command] = requests.get(command, 0) + count

    # --- answering ---------------------------------------------------------------------------------------

    def answer(self, what: Message | bytes) -> None:
        """Send a command, or an encoded frame."""
        self.outbox.say(what if isinstance(what, bytes) else encode_command(what))

    def _refuse(self, frame: Frame, failure: Exception) -> None:
        if not isinstance(failure, WeirError):
            log.error("a %s of %s failed", COMMANDS[frame.type].name, self.peer, exc_info=failure)
        else:
            log.debug("a %s of %s is refused: %s", COMMANDS[frame.type].name, self.peer, failure)
        no = refusal(frame, code_of(failure), text_of(failure))
        if no is not None:
            self.outbox.say(no)

    def _over_limit(self, what: str) -> None:
        """Count and log a producer, consumer or watcher that was refused because of the connection's limit."""
        self.services.metrics.over_limit += 1
        if not self._told_limit:
            self._told_limit = True
            log.warning("connection of %s is at its limit of %ss (limits.connection_consumers)", self.peer, what)


def error_frame(why: WeirError) -> bytes:
    """An error for the whole connection instead of a request."""
    return encode_command(api.CommandError(request_id=NO_REQUEST, error=code_of(why), message=text_of(why)))

"""Publishes of one connection: routes and encodes each message once, and sends each queue one batch.

Publishes of one receive buffer to the same queue become one entry. The broker confirms a publish when all of its
queues have stored it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from weir.broker.api.queues import Queue, QueueMessages
from weir.gateway.amqp.context import check_key
from weir.gateway.amqp.errors import precondition_failed, refuse
from weir.gateway.amqp.publish_properties import Facts, expected_name, facts_of, is_reply_name, with_reply_to
from weir.model.errors import InvalidNameError, QueueNotFoundError, TopicNotFoundError, WeirError
from weir.model.exchanges import DEFAULT_EXCHANGE, Exchange, ExchangeType
from weir.model.ids import Buffer
from weir.model.queues import delay_queue, topic_of_queue
from weir.model.registry import Action
from weir.runtime.waiters import tell_promptly
from weir.wire.amqp.command_reader import Command, PlainPublishes
from weir.wire.amqp.content import envelope, outgoing, returned
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.message import message_of
from weir.wire.amqp.methods import basic
from weir.wire.formats.messages import encode_message

if TYPE_CHECKING:
    from weir.gateway.amqp.channel import Channel
    from weir.gateway.amqp.session import Session

log = logging.getLogger(__name__)

#: Cache size in entries of publish facts, and the longest properties that are cached.
_REMEMBERED = 256
_REMEMBERED_BYTES = 512
#: A batch of this size goes to its queue before the end of the receive buffer.
_BATCH_BYTES = 1024 * 1024
_BATCH_MESSAGES = 4096


class Publishes(Protocol):
    """Receives the results of publishes: the confirms of a channel, or a transaction."""

    def take(self, queues: int) -> int:
        """Assign a number to a publish to `queues` queues."""

    def resolved(self, first: int, end: int, stored: bool) -> None:
        """A queue has stored the publishes with these numbers, or refused them."""


class _Batch:
    """Messages for one queue."""

    __slots__ = ("deliver_at_ms", "encoded", "expirations", "persistent", "queue", "runs", "size")

    def __init__(self, queue: Queue, deliver_at_ms: int | None) -> None:
        self.queue = queue
        self.deliver_at_ms = deliver_at_ms
        self.encoded: list[Buffer] = []
        self.size = 0
        self.persistent = False
        self.expirations: dict[int, int] = {}
        #: Receivers of results, in publish order: [receiver or None, first number, end number].
        self.runs: list[list[Any]] = []

    def add(self, encoded: bytes, facts: Facts, who: Publishes | None, number: int) -> None:
        place = len(self.encoded)
        self.encoded.append(encoded)
        self.size += len(encoded)
        if facts.persistent:
            self.persistent = True
        if facts.expiration_ms is not None:
            self.expirations[place] = facts.expiration_ms
        runs = self.runs
        if runs and runs[-1][0] is who and (who is None or runs[-1][2] == number):
            runs[-1][2] += 1
        else:
            runs.append([who, number, number + 1])

    def add_all(self, encoded: list[bytes], facts: Facts, who: Publishes | None, first: int) -> None:
        """Add messages that differ only in their bodies, with numbers from `first`."""
        count = len(encoded)
        self.encoded += encoded
        self.size += sum(map(len, encoded))
        if facts.persistent:
            self.persistent = True
        runs = self.runs
        if runs and runs[-1][0] is who and (who is None or runs[-1][2] == first):
            runs[-1][2] += count
        else:
            runs.append([who, first, first + count])


class Publishing:
    """Publishes of one session, collected in batches per queue until `flush`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._facts: dict[tuple[str, str, bytes], Facts] = {}
        #: Exchanges that the role may publish to, valid for one revision of the grants.
        self._allowed: dict[str, Exchange] = {}
        self._allowed_queues: set[str] = set()
        self._revision = -1
        self._batches: dict[object, _Batch] = {}
        #: The newest unstored publish to each queue.
        self._last: dict[Queue, asyncio.Future[int]] = {}
        #: Queues with publishes since the receive loop last checked their capacity.
        self.touched: dict[Queue, None] = {}
        self._now_ms = 0

    # --- routing -----------------------------------------------------------------------------------------

    def take(self, channel: "Channel", command: Command) -> Coroutine[Any, Any, None] | None:
        """Process a publish. Raises errors that close the channel. Returns a coroutine if the caller must wait."""
        method = command.method
        if not isinstance(method, basic.Publish) or command.properties is None or command.header is None:
            raise refuse(ReplyCode.INTERNAL_ERROR, "a publish without its content")
        if command.body is None:
            most = self._session.limits.max_message_bytes
            raise precondition_failed(f"message size {command.size} is larger than configured max size {most}")
        if method.immediate:
            raise refuse(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        exchange = self._checked(method.exchange)
        if exchange.type is ExchangeType.TOPIC:
            check_key(self._session, exchange, method.routing_key, Action.PRODUCE)
        key = (method.exchange, method.routing_key, command.header)
        facts = self._facts.get(key)
        if facts is None or facts.exchange is not exchange:
            facts = facts_of(exchange, method, command.properties, command.header)
            if len(command.header) <= _REMEMBERED_BYTES:
                if len(self._facts) >= _REMEMBERED:
                    self._facts.clear()
                self._facts[key] = facts
        if facts.user_id is not None:
            self._check_user(facts.user_id)
        if facts.wants_reply:
            facts = with_reply_to(facts, method, channel.reply_name())
        channel.published += 1
        transaction = channel.transaction
        if transaction is not None:
            transaction.publish(method, facts, bytes(command.body))
            return None
        return self.put(channel, method, facts, command.body, who=channel.confirms)

    def take_plain(
        self, channel: "Channel", plain: PlainPublishes, bodies: "list[memoryview]"
    ) -> "list[memoryview]":
        """Process publishes that differ only in their bodies. Raises errors that close the channel. Returns the
        bodies that the caller must publish one by one because the fast path does not apply: all, or none."""
        method = plain.method
        exchange = self._checked(method.exchange)
        if exchange.type is ExchangeType.TOPIC:
            check_key(self._session, exchange, method.routing_key, Action.PRODUCE)
        facts = self._facts.get((method.exchange, method.routing_key, plain.header))
        if facts is None or facts.exchange is not exchange or facts.template is None or method.immediate:
            return bodies
        if facts.user_id is not None or facts.wants_reply or facts.delay_ms or facts.expiration_ms is not None:
            return bodies
        vhost = self._session.vhost
        names = vhost.exchanges.route(method.exchange, facts.keys, facts.headers).queues
        if not names or (method.exchange == DEFAULT_EXCHANGE and not self._allowed_queues.issuperset(names)):
            return bodies
        queues: list[Queue] = []
        for name in names:
            queue = vhost.queues.find(name)
            if queue is None or not queue.alive:
                return bodies
            queues.append(queue)
        now_ms = self._now_ms = self._now_ms or self._session.clock.wall_ms()
        count, who = len(bodies), channel.confirms
        channel.published += count
        encoded = facts.template.encode_all(bodies, now_ms)
        first = 0 if who is None else who.take_all(count, len(queues))
        for queue in queues:
            batch = self._batches.get(queue)
            if batch is None:
                batch = self._batches[queue] = _Batch(queue, None)
            batch.add_all(encoded, facts, who, first)
            if batch.size >= _BATCH_BYTES or len(batch.encoded) >= _BATCH_MESSAGES:
                del self._batches[queue]
                self._hand_over(batch)
        return []

    def _checked(self, name: str) -> Exchange:
        """The exchange, if the role may publish to it."""
        session = self._session
        exchanges = session.vhost.exchanges
        revision = session.services.guard.revision
        if revision != self._revision:
            self._revision = revision
            self._allowed.clear()
            self._allowed_queues.clear()
        exchange = exchanges.find(name)
        if exchange is None or self._allowed.get(name) is not exchange:
            exchanges.check_publish(session.role, name)
            exchange = exchanges.get(name)
            self._allowed[name] = exchange
        return exchange

    def _check_queue(self, name: str) -> None:
        """Check that the role may publish to the queue with this routing key of the default exchange."""
        session = self._session
        try:
            topic = topic_of_queue(session.vhost.namespace, name)
        except InvalidNameError:
            return  # no queue can have this name: the message is unroutable
        session.services.guard.check(session.role, topic, Action.PRODUCE)
        if len(self._allowed_queues) >= _REMEMBERED:
            self._allowed_queues.clear()
        self._allowed_queues.add(name)

    def _check_user(self, user_id: str) -> None:
        credentials = self._session.credentials
        if not credentials.vouches_for(user_id):
            raise precondition_failed(
                f"user_id property set to '{user_id}' but authenticated user was '{credentials.user}'"
            )

    def put(
        self, channel: "Channel", method: basic.Publish, facts: Facts, body: Buffer, *, who: Publishes | None
    ) -> Coroutine[Any, Any, None] | None:
        """Route a message, and add it to the batches of its queues."""
        vhost = self._session.vhost
        if facts.delay_ms:
            waiting = vhost.queues.find(delay_queue(method.exchange).name)
            if waiting is None or not waiting.alive:
                return self._put_delayed(channel, method, facts, bytes(body), who=who)
            self._add(channel, method, facts, body, who=who, queues=[waiting])
            return None
        names = vhost.exchanges.route(method.exchange, facts.keys, facts.headers).queues
        if method.exchange == DEFAULT_EXCHANGE:
            for name in names:
                if name not in self._allowed_queues and not is_reply_name(name):
                    self._check_queue(name)
        queues: list[Queue] = []
        find = vhost.queues.find
        for name in names:
            queue = find(name)
            if queue is None or not queue.alive:
                return self._put_elsewhere(channel, method, facts, bytes(body), who=who, names=names)
            queues.append(queue)
        self._add(channel, method, facts, body, who=who, queues=queues)
        return None

    async def _put_delayed(
        self, channel: "Channel", method: basic.Publish, facts: Facts, body: bytes, *, who: Publishes | None
    ) -> None:
        """Add a delayed message after its delay queue is opened or created."""
        waiting = await self._session.vhost.queues.delayed(method.exchange)
        self._add(channel, method, facts, body, who=who, queues=[waiting])

    async def _put_elsewhere(
        self,
        channel: "Channel",
        method: basic.Publish,
        facts: Facts,
        body: bytes,
        *,
        who: Publishes | None,
        names: tuple[str, ...],
    ) -> None:
        """Add a message after its closed queues are opened, without those that do not exist."""
        queues: list[Queue] = []
        delivered = False
        for name in names:
            if is_reply_name(name):
                parts = (envelope(method.exchange, method.routing_key), facts.raw, body)
                delivered |= await self._session.services.replies.deliver(expected_name(name), parts)
                continue
            try:
                queues.append(await self._session.open_queue(name))
            except (QueueNotFoundError, TopicNotFoundError, InvalidNameError):
                continue
        self._add(channel, method, facts, body, who=who, queues=queues, delivered=delivered)

    def _add(
        self,
        channel: "Channel",
        method: basic.Publish,
        facts: Facts,
        body: Buffer,
        *,
        who: Publishes | None,
        queues: list[Queue],
        delivered: bool = False,
    ) -> None:
        if not queues and method.mandatory and not delivered:
            self._return(channel, method, facts, body)
        number = 0 if who is None else who.take(len(queues))
        if not queues:
            return
        now_ms = self._now_ms
        if not now_ms:
            now_ms = self._now_ms = self._session.clock.wall_ms()
        if facts.template is not None:
            encoded = facts.template.encode(body, now_ms)
        else:
            encoded = encode_message(message_of(method, facts.properties, bytes(body), now_ms, facts.raw))
        deliver_at_ms = now_ms + facts.delay_ms if facts.delay_ms else None
        for queue in queues:
            key: object = queue if deliver_at_ms is None else (queue, deliver_at_ms)
            batch = self._batches.get(key)
            if batch is None:
                batch = self._batches[key] = _Batch(queue, deliver_at_ms)
            batch.add(encoded, facts, who, number)
            if batch.size >= _BATCH_BYTES or len(batch.encoded) >= _BATCH_MESSAGES:
                del self._batches[key]
                self._hand_over(batch)

    def _return(self, channel: "Channel", method: basic.Publish, facts: Facts, body: Buffer) -> None:
        """Return an unroutable mandatory message to its publisher, before its confirm."""
        channel.returned += 1
        self._session.services.metrics.returned += 1
        message = outgoing(envelope(method.exchange, method.routing_key), facts.raw, bytes(body))
        code = ReplyCode.NO_ROUTE
        self._session.outbox.say_all(returned(channel.number, code, code.name, message, self._session.frame_max))

    # --- storing -----------------------------------------------------------------------------------------

    @property
    def has_taken(self) -> bool:
        """Whether unflushed publishes exist."""
        return bool(self._batches)

    def flush(self) -> None:
        """Publish all collected batches to their queues."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        self._now_ms = 0
        for batch in batches.values():
            self._hand_over(batch)

    def _hand_over(self, batch: _Batch) -> None:
        queue = batch.queue
        self._session.load.publish(batch.size, len(batch.encoded))
        self._session.services.metrics.published += len(batch.encoded)
        try:
            stored = queue.publish(
                QueueMessages(batch.encoded, batch.persistent, batch.deliver_at_ms, batch.expirations)
            )
        except WeirError as refused:
            log.info("queue %r refused a publish: %s", queue.declaration.name, refused)
            self._resolve(batch, refused=-1)
            return
        self.touched[queue] = None
        self._last[queue] = stored
        tell_promptly(stored, partial(self._stored, batch))

    def _stored(self, batch: _Batch, done: "asyncio.Future[int]") -> None:
        if self._last.get(batch.queue) is done:
            del self._last[batch.queue]
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        if failure is not None:
            log.warning(
                "%d messages for queue %r not stored (nacked if the channel is in confirm mode): %s",
                len(batch.encoded),
                batch.queue.declaration.name,
                failure,
            )
        self._resolve(batch, -1 if failure is not None else done.result())

    def _resolve(self, batch: _Batch, refused: int) -> None:
        """Report the results of a batch. `refused`: a bit mask of the messages not stored; -1 for all."""
        count = len(batch.encoded)
        self._session.load.published(batch.size, count)
        place = 0
        for who, first, end in batch.runs:
            if who is not None:
                if not refused:
                    who.resolved(first, end, True)
                elif refused < 0:
                    who.resolved(first, end, False)
                else:
                    for number in range(first, end):
                        who.resolved(number, number + 1, not refused >> (place + number - first) & 1)
            place += end - first

    async def settled(self) -> None:
        """Flush, and wait until the queues have stored or refused all publishes so far."""
        self.flush()
        if self._last:
            await asyncio.wait(list(self._last.values()))

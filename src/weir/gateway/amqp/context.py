"""Services shared by AMQP sessions, and permission checks on the queues and exchanges of a method.

As in RabbitMQ, a refusal names the queue or exchange that caused it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir.broker.api.broker import Broker
from weir.broker.api.connections import ConnectionDirectory, Connections
from weir.broker.api.queues import DirectReplies, Exchanges, Queues
from weir.broker.api.security import Guard
from weir.gateway.amqp.errors import access_refused, key_refused
from weir.gateway.amqp.opened_messages import DecodedBatches
from weir.gateway.amqp.settings import AmqpMetrics
from weir.model.errors import InvalidNameError, NotAuthorisedError
from weir.model.exchanges import Exchange, ExchangeType
from weir.model.queues import topic_of_queue
from weir.model.registry import Action
from weir.runtime.interfaces import Runtime

if TYPE_CHECKING:
    from weir.gateway.amqp.session import Session


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all listeners."""

    runtime: Runtime
    broker: Broker
    exchanges: Exchanges
    queues: Queues
    guard: Guard
    replies: DirectReplies
    #: Directory of client connections, for the admin and management APIs.
    connections: Connections = field(default_factory=ConnectionDirectory)
    metrics: AmqpMetrics = field(default_factory=AmqpMetrics)
    #: Cache of decoded batches, for batches that several consumers share.
    decoded: DecodedBatches = field(default_factory=DecodedBatches)


_DEAD_LETTERS, _ALTERNATE = "x-dead-letter-exchange", "alternate-exchange"


def check_queue(session: "Session", name: str, action: Action) -> None:
    _check(session, "queue", name, action)


def check_exchange(session: "Session", name: str, action: Action) -> None:
    _check(session, "exchange", name, action)


def check_key(session: "Session", exchange: Exchange | None, key: str, action: Action) -> None:
    """Check topic permissions on a topic exchange."""
    if exchange is None or exchange.type is not ExchangeType.TOPIC:
        return
    try:
        session.vhost.exchanges.check_key(session.role, exchange, key, action)
    except NotAuthorisedError:
        raise key_refused(key, exchange.name, session.vhost.name, session.user) from None


def check_dead_letters(session: "Session", queue: str, arguments: dict[str, object]) -> None:
    """Check x-dead-letter-exchange: the user needs read permission on the queue and write on the exchange."""
    named = arguments.get(_DEAD_LETTERS)
    if isinstance(named, str):
        _check_passing(session, "queue", queue, named)


def check_alternate(session: "Session", exchange: str, arguments: dict[str, object]) -> None:
    named = arguments.get(_ALTERNATE)
    if isinstance(named, str):
        _check_passing(session, "exchange", exchange, named)


def _check_passing(session: "Session", kind: str, source: str, exchange: str) -> None:
    """Check configure and read permission on the source, then write permission on the target exchange."""
    if source:
        try:
            topic = topic_of_queue(session.vhost.namespace, source)
        except InvalidNameError:
            return
        session.services.guard.check_configure(session.role, topic)
        _check(session, kind, source, Action.CONSUME)
    _check(session, "exchange", exchange, Action.PRODUCE)


def _check(session: "Session", kind: str, name: str, action: Action) -> None:
    """Check one permission. Skip names that are no valid topic names: the broker has its own rules for them."""
    try:
        topic = topic_of_queue(session.vhost.namespace, name).base
    except InvalidNameError:
        return
    try:
        session.services.guard.check(session.role, topic, action)
    except NotAuthorisedError:
        raise access_refused(kind, name, session.vhost.name, session.user) from None

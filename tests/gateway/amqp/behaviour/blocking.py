"""When a broker has no room for more, publishers are told so, and when that is over; others go on."""

from typing import Any

from tests.gateway.amqp.behaviour.raw import Raw
from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import until

from weir.wire.amqp.methods import basic, queue
from weir.wire.amqp.properties import PERSISTENT, Properties

_MANY = 200


def opened(session: Session, host: str, capable: bool) -> Raw:
    raw = session.bare()
    raw.open(vhost=host, capabilities={"connection.blocked": capable})
    raw.channel()
    return raw


def publish(raw: Raw) -> None:
    for _ in range(_MANY):
        raw.publish(1, basic.Publish(routing_key="q"), b"x", Properties(delivery_mode=PERSISTENT))


def count(raw: Raw) -> Any:
    found = raw.ask(1, queue.Declare(queue="q", passive=True))
    return found["message_count"] if isinstance(found, dict) else found


@scenario
def a_publisher_is_told_that_it_is_blocked_and_when_it_is_not(session: Session) -> Any:
    host = session.vhost("host")
    publisher, other = opened(session, host, True), opened(session, host, True)
    with session.without_room(host):
        other.ask(1, queue.Declare(queue="q", durable=True))
        publish(publisher)
        blocked = publisher.hear()
        others = [isinstance(count(other), int)]
    unblocked = publisher.hear()
    stored = until(lambda: count(other) == _MANY)
    return [blocked["is"], others, unblocked["is"], stored]


@scenario
def who_does_not_understand_it_is_not_told(session: Session) -> Any:
    host = session.vhost("host")
    publisher, other = opened(session, host, False), opened(session, host, True)
    with session.without_room(host):
        other.ask(1, queue.Declare(queue="q", durable=True))
        publish(publisher)
        quiet = publisher.hear(0.4)
    return [quiet, until(lambda: count(other) == _MANY), count(publisher)]

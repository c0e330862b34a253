"""Limits of a vhost: how many connections and queues it may have, and what one more is refused with."""

from typing import Any

from tests.gateway.amqp.behaviour.raw import Raw
from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import until


def limited(session: Session, name: str, value: Any) -> list[Any]:
    """A vhost with one limit: the status, and what it is listed as."""
    vhost = session.vhost("host")
    status, told = session.manage("PUT", f"vhost-limits/{vhost}/{name}", {"value": value})
    return [status, told, session.manage("GET", f"vhost-limits/{vhost}")[1]]


@scenario
def a_vhost_has_so_many_queues(session: Session) -> Any:
    said = limited(session, "max-queues", 2)
    talk = session.talk(vhost=session.name("host"))
    one = talk.channel()
    return [
        said,
        one.declare("one", durable=True),
        one.declare("", exclusive=True),
        talk.channel().declare("three"),
        talk.channel().declare("", exclusive=True),
        one.declare("one", durable=True),
        one.delete("one"),
        one.declare("three"),
        session.manage("DELETE", f"vhost-limits/{session.name('host')}/max-queues")[0],
        one.declare("four"),
    ]


@scenario
def a_vhost_has_so_many_connections(session: Session) -> Any:
    said = limited(session, "max-connections", 1)
    host = session.name("host")

    def opened() -> tuple[Raw, Any]:
        raw = session.bare()
        return raw, raw.open(vhost=host)

    first, welcome = opened()
    refused = opened()[1]
    first.hang_up()
    again = until(lambda: None if isinstance(found := opened()[1], str) else found)
    session.manage("PUT", f"vhost-limits/{host}/max-connections", {"value": 0})
    none = opened()[1]
    session.manage("PUT", f"vhost-limits/{host}/max-connections", {"value": -1})
    return [said, welcome, refused, again, none, opened()[1]]


@scenario
def a_limit_is_a_number(session: Session) -> Any:
    host = session.vhost("host")
    return [
        session.manage("PUT", f"vhost-limits/{host}/max-queues", {"value": "many"}),
        session.manage("PUT", f"vhost-limits/{host}/max-exchanges", {"value": 1}),
        session.manage("PUT", f"vhost-limits/{host}/max-queues", {})[0],
        session.manage("PUT", f"vhost-limits/{session.name('nowhere')}/max-queues", {"value": 1}),
        session.manage("DELETE", f"vhost-limits/{host}/max-queues"),
        session.manage("GET", f"vhost-limits/{host}"),
    ]

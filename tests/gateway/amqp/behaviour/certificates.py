"""EXTERNAL: the certificate that a client shows over TLS says who it is."""

from typing import Any

from tests.gateway.amqp.behaviour.raw import CAPABILITIES, Raw, told
from tests.gateway.amqp.behaviour.scenario import Session, scenario

from weir.wire.amqp.command_reader import Command
from weir.wire.amqp.frames import PROTOCOL_HEADER
from weir.wire.amqp.methods import connection
from weir.wire.amqp.tables import Table

#: Those that there are: of a user, and of nobody that is known.
NAMES = ("guest", "nobody")


def offered(raw: Raw) -> Any:
    """What the server can know somebody by."""
    raw.send_bytes(PROTOCOL_HEADER)
    start = raw.read()
    assert isinstance(start, Command)
    assert isinstance(start.method, connection.Start)
    return sorted(start.method.mechanisms.decode().split())


def proved(raw: Raw, response: bytes = b"") -> Any:
    able = Table.of({"capabilities": Table.of(CAPABILITIES)})
    raw.send(0, connection.StartOk(able, "EXTERNAL", response))
    found = told(raw.read())
    return found["is"] if isinstance(found, dict) else found


@scenario
def a_certificate_says_who_somebody_is(session: Session) -> Any:
    raw = session.secure("guest")
    mechanisms, known = offered(raw), proved(raw)
    raw.send(0, connection.TuneOk(10, 131_072, 0), connection.Open("/"))
    return [mechanisms, known, told(raw.read())]


@scenario
def what_else_is_said_does_not_count(session: Session) -> Any:
    raw = session.secure("guest")
    offered(raw)
    return proved(raw, b"somebody else")


@scenario
def without_a_certificate_it_is_not_offered(session: Session) -> Any:
    raw = session.secure(None)
    return [offered(raw), proved(raw)]


@scenario
def without_tls_it_is_not_offered(session: Session) -> Any:
    raw = session.bare()
    return ["EXTERNAL" in offered(raw), proved(raw)]


@scenario
def who_is_not_known_is_refused(session: Session) -> Any:
    raw = session.secure("nobody")
    offered(raw)
    return proved(raw)

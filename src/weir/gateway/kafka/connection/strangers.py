"""Clients of other protocols that came to Kafka's port: known by their first bytes, so that the log can say so."""

from weir.model.ids import Buffer

#: No request of Kafka's begins like this: as a size each would be far over the limit.
_BEGINNINGS = {
    b"GET ": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"HEAD": "HTTP",
    b"DELE": "HTTP",
    b"OPTI": "HTTP",
    b"PATC": "HTTP",
    b"CONN": "HTTP",
    b"PRI ": "HTTP/2",
    b"SSH-": "SSH",
    b"AMQP": "AMQP",
}
_TLS = b"\x16\x03"


def protocol_of(first: Buffer) -> str | None:
    """What a connection speaks that begins with these bytes, if that is known, and not Kafka's protocol."""
    beginning = bytes(memoryview(first)[:4])
    return "TLS" if beginning.startswith(_TLS) else _BEGINNINGS.get(beginning)

"""Protocols recognized by the first bytes of a connection, and the refusal of a client at the wrong port.

All protocols served here begin with bytes of the client, so a listener can name the protocol of any client.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from weir.model.errors import WrongPortError
from weir.model.ids import Buffer

HTTP: Final = "HTTP"
HTTP2: Final = "HTTP/2"
TLS: Final = "TLS"
AMQP: Final = "AMQP"
PULSAR: Final = "Pulsar"
KAFKA: Final = "Kafka"
REMOTING: Final = "RocketMQ 4 remoting"
MQTT: Final = "MQTT"
SSH: Final = "SSH"

_BEGINNINGS = {
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC"), HTTP),
    b"HTTP": HTTP,
    b"PRI ": HTTP2,
    b"SSH-": SSH,
    b"AMQP": AMQP,
}
#: The record of a handshake, and of an alert, in any version of TLS.
_TLS = (b"\x16\x03", b"\x15\x03")
_MQTT = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
#: Of a frame of Pulsar: sizes of the frame and the command, the command's type (CONNECT, CONNECTED, ERROR).
_PULSAR = Struct(">IIBB")
_PULSAR_TYPE_TAG, _PULSAR_TYPES = 0x08, (2, 3, 14)
#: Of a request of Kafka: its size, the number of the API and its version.
_KAFKA = Struct(">IHH")
_KAFKA_LEAST_BYTES, _KAFKA_MOST_BYTES = 10, 1 << 20
_KAFKA_APIS, _KAFKA_VERSIONS = 128, 32
#: Of a frame of remoting: its size, the form of the header (0 JSON, 1 binary) and the header's size.
_REMOTING = Struct(">IB3s")
_LOOKED_AT = 64

#: The listener of each protocol, in the clear and over TLS.
_LISTENERS = {
    HTTP: ("http", "https"),
    PULSAR: ("pulsar", "pulsar_tls"),
    KAFKA: ("kafka", "kafka_tls"),
    AMQP: ("amqp", "amqps"),
    HTTP2: ("rocketmq", "rocketmq_tls"),
    REMOTING: ("rocketmq", "rocketmq_tls"),
}
_SERVED = {
    listener: protocol
    for protocol in (REMOTING, HTTP2, AMQP, KAFKA, PULSAR, HTTP)
    for listener in _LISTENERS[protocol]
}
#: A listener as a client's user knows it.
_TITLES = {"http": "HTTP", "https": "HTTPS", "rocketmq": "RocketMQ (gRPC)", "rocketmq_tls": "RocketMQ (gRPC) TLS"}


def protocol_of(first: Buffer) -> str | None:
    """The protocol of a stream that begins with these bytes, of either side; None if it is unknown."""
    data = bytes(memoryview(first)[:_LOOKED_AT])
    if data.startswith(_TLS):
        return TLS
    if data[:4] in _BEGINNINGS:
        return _BEGINNINGS[data[:4]]
    if data[:1] == b"\x10" and any(name in data[2:13] for name in _MQTT):
        return MQTT
    if _is_pulsar(data):
        return PULSAR
    if _is_remoting(data):
        return REMOTING
    return KAFKA if _is_kafka(data) else None


def _is_pulsar(data: bytes) -> bool:
    if len(data) < _PULSAR.size:
        return False
    total, size, tag, kind = _PULSAR.unpack_from(data)
    return bool(size == total - 4 and tag == _PULSAR_TYPE_TAG and kind in _PULSAR_TYPES)


def _is_remoting(data: bytes) -> bool:
    if len(data) <= _REMOTING.size:
        return False
    total, form, size = _REMOTING.unpack_from(data)
    if not 0 < int.from_bytes(size) <= total - 4:
        return False
    return bool(form == 0 and data[8:9] == b"{")


def _is_kafka(data: bytes) -> bool:
    if len(data) < _KAFKA.size:
        return False
    size, api, version = _KAFKA.unpack_from(data)
    if api << 16 | version == size - 4:  # a frame of Pulsar: the size of its command
        return False
    return bool(
        _KAFKA_LEAST_BYTES <= size <= _KAFKA_MOST_BYTES and api < _KAFKA_APIS and version < _KAFKA_VERSIONS
    )


@dataclass(frozen=True, slots=True)
class ServedPort:
    """A listener by its name in the configuration, and the addresses of all listeners of the process."""

    listener: str
    listeners: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, first: Buffer) -> WrongPortError | None:
        """The refusal of a client whose first bytes are of another protocol; None if they are not."""
        found, served = protocol_of(first), _SERVED.get(self.listener, "")
        if found is None or found == served or (found == REMOTING and served == HTTP2):
            return None
        if found == TLS:
            return self._without_tls(served)
        return WrongPortError(
            f"the client uses {_named(found)}, and this port (listeners.{self.listener}) serves {_named(served)}",
            hint=self._right_port(found),
        )

    def _without_tls(self, served: str) -> WrongPortError:
        sibling = _LISTENERS[served][1]
        return WrongPortError(
            f"the client uses TLS, and this port (listeners.{self.listener}) serves {_named(served)} without TLS",
            hint=self._port_of(sibling) or f"connect without TLS, or set listeners.{sibling}",
        )

    def _right_port(self, protocol: str) -> str:
        names = _LISTENERS.get(protocol, ())
        known = [found for name in names if (found := self._port_of(name))]
        if known:
            return known[0]
        return f"set listeners.{names[0]} to serve it" if names else f"this server does not serve {protocol}"

    def _port_of(self, listener: str) -> str:
        """`the Kafka port is 9092`; empty if the process has no such listener."""
        port = self.listeners.get(listener, "").rpartition(":")[2]
        return f"the {_title(listener)} port is {port}" if port else ""


def _named(protocol: str) -> str:
    if protocol == HTTP2:
        return "HTTP/2 (gRPC, RocketMQ 5)"
    return protocol if protocol in (HTTP, TLS, SSH) else f"the {protocol} protocol"


def _title(listener: str) -> str:
    if listener in _TITLES:
        return _TITLES[listener]
    protocol = _SERVED[listener]
    return protocol if listener == _LISTENERS[protocol][0] else f"{protocol} TLS"


def answer_to(first: Buffer, refusal: WrongPortError) -> bytes:
    """The refusal in the client's own protocol; empty if that has no words for it."""
    match protocol_of(first):
        case "HTTP":
            body = json.dumps({"reason": str(refusal)}).encode()
            head = (
                "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            return head.encode() + body
        case "Pulsar":
            # Imported here: only this answer needs Pulsar's messages.
            from weir.wire.pulsar import pulsar_api_pb2 as api
            from weir.wire.pulsar.frames import NO_REQUEST, encode_command

            error = api.ServerError.UnsupportedVersionError
            return encode_command(api.CommandError(request_id=NO_REQUEST, error=error, message=str(refusal)))
    return b""


def reason_in(answer: Buffer) -> str:
    """The reason that an HTTP answer gives in its JSON body; empty if it gives none."""
    body = bytes(answer).partition(b"\r\n\r\n")[2]
    try:
        found = json.loads(body)
        return str(found["reason"])
    except (ValueError, KeyError, TypeError):
        return ""

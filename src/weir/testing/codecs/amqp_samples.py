"""Sessions of AMQP for the fuzz: what a client or a server sends, read as the other would."""

from random import Random
from typing import Any

from weir.testing.codecs.fuzzing import Codec
from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.content import Deliveries, envelope, outgoing, publish
from weir.wire.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER, Role
from weir.wire.amqp.message import message_of, outgoing_of, properties_of
from weir.wire.amqp.method_codec import Wire
from weir.wire.amqp.methods import METHODS, Method, basic, encode_method
from weir.wire.amqp.properties import NAMES, Properties, encode_properties
from weir.wire.amqp.tables import Field, Table
from weir.wire.formats.messages import decode_messages, encode_messages

FRAME_MAX = 300
MAX_BODY = 500
MAX_HELD = 700


def sample_table(dice: Random, depth: int = 0) -> Table:
    def field() -> Field:
        tag = dice.choice("tbBsUuIilLTfdDSxVAF" if depth < 3 else "tISV")
        known: dict[str, Any] = {
            "t": True,
            "f": 0.5,
            "d": 0.1,
            "D": (2, 314),
            "S": dice.choice(("", "text", "\udcff")),
            "x": dice.randbytes(3),
            "V": None,
        }
        if tag == "A":
            return Field(tag, tuple(field() for _ in range(dice.randrange(3))) if depth < 3 else ())
        return Field(tag, sample_table(dice, depth + 1) if tag == "F" else known.get(tag, dice.randrange(100)))

    depth += 1
    return Table.of(
        [(dice.choice(("key", "h", "weir-event-ms", "x-death")), field()) for _ in range(dice.randrange(4))]
    )


def sample_properties(dice: Random) -> Properties:
    said: dict[str, Any] = {name: dice.choice(("", "text", "7")) for name in NAMES if dice.random() < 0.3}
    for name in ("delivery_mode", "priority", "timestamp"):
        if name in said:
            said[name] = dice.randrange(256)
    if "headers" in said:
        said["headers"] = sample_table(dice)
    return Properties(**said)


def sample_method(dice: Random, cls: type[Method]) -> Method:
    known: dict[Wire, Any] = {
        Wire.BIT: dice.random() < 0.5,
        Wire.SHORTSTR: dice.choice(("", "q", "amq.topic")),
        Wire.LONGSTR: dice.randbytes(5),
    }
    return cls(
        *(
            sample_table(dice) if kind is Wire.TABLE else known.get(kind, dice.randrange(200))
            for name, kind in cls.layout
            if name is not None
        )
    )


def sample_session(dice: Random, role: Role) -> bytes:
    """As the peer of that role sends it."""
    parts: list[Any] = [PROTOCOL_HEADER] if role is Role.SERVER else []
    for _ in range(dice.randrange(1, 5)):
        channel = dice.randrange(1, 4)
        raw, body = encode_properties(sample_properties(dice)), dice.randbytes(dice.choice((0, 9, 400, 600)))
        if dice.random() < 0.4:
            cls = dice.choice([one for one in METHODS.values() if role in one.receivers and not one.has_content])
            parts.append(encode_method(0 if cls.class_id == 10 else channel, sample_method(dice, cls)))
        elif role is Role.SERVER:
            parts += publish(channel, basic.Publish("e", "r"), raw, body, FRAME_MAX)
        else:
            message = outgoing(envelope("e", "r"), raw, body)
            parts += Deliveries(channel, "tag", FRAME_MAX).frames(7, False, message)
        if dice.random() < 0.2:
            parts.append(HEARTBEAT_FRAME)
    return b"".join(parts)


def read_session(data: bytes, role: Role) -> None:
    """In two pieces, with all that a gateway would touch."""
    reader = CommandReader(role, frame_max=FRAME_MAX, max_body=MAX_BODY, max_held=MAX_HELD)
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        for command in reader.feed(piece):
            if not command.method.has_content:
                encode_method(command.channel, command.method)
            elif command.body is not None and command.properties is not None:
                assert len(command.body) <= MAX_BODY
                publish_like = basic.Publish("e", "r")
                message = message_of(publish_like, command.properties, command.body, 0, command.header)
                (kept,) = decode_messages(encode_messages([message]))
                assert outgoing_of(kept, "q").header[12:] == command.header
                properties_of(message)
        assert reader.held_bytes <= MAX_HELD
        assert len(reader._splitter._torn) <= FRAME_MAX + 8


AMQP_CODECS = [
    Codec(
        f"AMQP as a {role.value} reads it",
        lambda dice, role=role: sample_session(dice, role),  # type: ignore[misc]
        lambda data, role=role: read_session(data, role),  # type: ignore[misc]
    )
    for role in Role
]

"""The bytes of every method, table and property beside those of two other codecs: pamqp's and pika's.

Their tables are written as they write them and read as a `Table`: which tag a plain number gets is each one's own.
"""

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.content import Deliveries, envelope, outgoing, publish
from weir.wire.amqp.frames import BODY, HEAD, HEARTBEAT_FRAME, PROTOCOL_HEADER, Role
from weir.wire.amqp.method_codec import Wire
from weir.wire.amqp.methods import METHODS, Method, access, basic, connection, decode_method, encode_method
from weir.wire.amqp.properties import NAMES, Properties, decode_properties, encode_properties
from weir.wire.amqp.tables import Field, Table

SAMPLES = 4
COMMON = [cls for cls in METHODS.values() if not cls.name.startswith("access.")]
pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")
by_name = pytest.mark.parametrize("cls", COMMON, ids=lambda cls: cls.name)
ARGUMENTS = {
    "flag": True,
    "small": -5,
    "large": 1 << 40,
    "text": "é",
    "nothing": None,
    "more": {"list": [1, "two"]},
}
STAMP = 1_800_000_000


@pytest.fixture(scope="module")
def pamqp() -> Any:
    import pamqp.frame

    return pamqp


@pytest.fixture(scope="module")
def pika() -> Any:
    import pika

    return pika


def sample(kind: Wire, dice: Random) -> Any:
    """A plain value that all three can say."""
    match kind:
        case Wire.BIT:
            return dice.random() < 0.5
        case Wire.OCTET | Wire.SHORT | Wire.LONG | Wire.LONGLONG:
            return dice.getrandbits({Wire.OCTET: 8, Wire.SHORT: 16, Wire.LONG: 32, Wire.LONGLONG: 63}[kind])
        case Wire.TABLE:
            return dice.choice(({}, ARGUMENTS))
    return "".join(dice.choice("abé.-_") for _ in range(dice.randrange(12)))


def values(cls: type[Method], dice: Random) -> list[Any]:
    """For all arguments, the reserved ones included."""
    empty = {Wire.BIT: False, Wire.SHORT: 0}
    return [empty.get(kind, "") if name is None else sample(kind, dice) for name, kind in cls.layout]


def ours(cls: type[Method], found: list[Any], table: Any) -> Method:
    arguments = []
    for (name, kind), one in zip(cls.layout, found, strict=True):
        if name is not None:
            form = {Wire.TABLE: lambda said: Table(table(said)), Wire.LONGSTR: str.encode}.get(kind)
            arguments.append(one if form is None else form(one))
    return cls(*arguments)


@by_name
def test_pamqp_writes_and_reads_the_same(cls: type[Method], pamqp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pamqp.commands.INDEX_MAPPING[cls.class_id << 16 | cls.method_id]
    monkeypatch.setattr(theirs, "validate", lambda self: None)  # it is stricter than RabbitMQ about names
    dice = Random(f"pamqp {cls.name}")
    for _ in range(SAMPLES):
        found = values(cls, dice)
        other = theirs()
        for name, one in zip(theirs.attributes(), found, strict=True):
            setattr(other, name, one)
        method = ours(cls, found, lambda said: pamqp.encode.field_table(said)[4:])
        frame = encode_method(9, method)
        assert frame == pamqp.frame.marshal(other, 9)
        consumed, channel, read = pamqp.frame.unmarshal(frame)
        assert (consumed, channel, type(read)) == (len(frame), 9, theirs)
        assert [getattr(read, name) for name in theirs.attributes()] == found
        assert decode_method(frame[7:-1]) == method


@by_name
def test_pika_writes_and_reads_the_same(cls: type[Method], pika: Any) -> None:
    theirs = pika.spec.methods[cls.class_id << 16 | cls.method_id]

    def encoded(said: dict[str, Any]) -> bytes:
        pieces: list[bytes] = []
        pika.data.encode_table(pieces, said)
        return b"".join(pieces)[4:]

    dice = Random(f"pika {cls.name}")
    for _ in range(SAMPLES):
        found = values(cls, dice)
        method = ours(cls, found, encoded)
        frame = encode_method(9, method)
        assert frame == pika.frame.Method(9, theirs(*found)).marshal()
        if cls is connection.UpdateSecret:  # which pika only sends: it puts the secret elsewhere when it reads it
            continue
        read = theirs(*values(cls, dice))
        read.decode(frame[11:-1])
        assert [one.decode() if isinstance(one, bytes) else one for one in vars(read).values()] == found


def test_tickets_which_both_forgot_are_as_the_older_protocol_has_them() -> None:
    asked = encode_method(1, access.Request("/data", False, True, True, True, True))
    assert asked[7:-1] == b"\x00\x1e\x00\x0a\x05/data\x1e"
    assert encode_method(1, access.RequestOk(101))[7:-1] == b"\x00\x1e\x00\x0b\x00\x65"


SAID: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"text": "é", "flag": False, "small": 7},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "amq.rabbitmq.reply-to",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": STAMP,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "cluster_id": "",
}


def subsets() -> list[dict[str, Any]]:
    dice = Random("properties")
    some = [{name: SAID[name] for name in NAMES if dice.random() < 0.5} for _ in range(30)]
    return [{}, SAID, *({name: SAID[name]} for name in NAMES), *some]


def test_pika_has_the_same_properties(pika: Any) -> None:
    for said in subsets():
        raw = b"".join(pika.spec.BasicProperties(**said).encode())
        table = said.get("headers")
        mine = Properties(**{**said, "headers": None if table is None else Table.of(table)})
        assert encode_properties(mine) == raw
        assert decode_properties(raw) == mine
        read = pika.spec.BasicProperties()
        read.decode(encode_properties(mine))
        assert {name: one for name, one in vars(read).items() if one is not None} == said


def test_pamqp_has_the_same_properties(pamqp: Any) -> None:
    for said in subsets():
        there = {("message_type" if name == "type" else name): one for name, one in said.items()}
        if "timestamp" in there:
            there["timestamp"] = datetime.fromtimestamp(STAMP, UTC)
        there.pop("cluster_id", None)  # it takes an empty one for none
        raw = pamqp.header.ContentHeader(0, 77, pamqp.commands.Basic.Properties(**there)).marshal()
        table = Table(pamqp.encode.field_table(said["headers"])[4:]) if "headers" in said else None
        mine = Properties(**{**said, "headers": table, "cluster_id": None})
        assert outgoing(b"", encode_properties(mine), bytes(77)).header == raw
        assert decode_properties(raw[12:]) == mine


def test_both_read_every_type_of_a_table(pamqp: Any, pika: Any) -> None:
    fields = {
        "t": True,
        "b": -5,
        "B": 250,
        "s": -500,
        "u": 65_000,
        "I": -70_000,
        "i": 4_000_000_000,
        "l": -(1 << 40),
        "L": -(1 << 41),
        "T": STAMP,
        "f": 4.0,
        "d": 8.0,
        "D": (2, 314),
        "S": "text",
        "x": b"\xff\x00",
        "V": None,
        "A": (Field("s", 1), Field("S", "two")),
        "F": Table.of({"inside": Field("u", 3)}),
    }
    raw = Table.of({tag: Field(tag, one) for tag, one in fields.items()}).raw
    sized = len(raw).to_bytes(4, "big") + raw
    plain: dict[str, Any] = {
        **fields,
        "A": [1, "two"],
        "F": {"inside": 3},
        "T": datetime.fromtimestamp(STAMP, UTC),
    }
    for read in (pamqp.decode.field_table(sized)[1], pika.data.decode_table(sized, 0)[0]):
        assert str(read.pop("D")) == "3.14"
        assert read == {tag: one for tag, one in plain.items() if tag != "D"}


def test_frames_of_a_content_are_those_of_pika(pika: Any) -> None:
    body = bytes(range(256)) * 40
    said = pika.spec.BasicProperties(content_type="text/plain", delivery_mode=2)
    deliver = pika.spec.Basic.Deliver("tag", 7, True, "e", "r")
    raw = encode_properties(Properties(content_type="text/plain", delivery_mode=2))
    message = outgoing(envelope("e", "r"), raw, body)
    for frame_max in (4096, 131_072):
        size = frame_max - 8
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        theirs = [
            pika.frame.Method(3, deliver).marshal(),
            pika.frame.Header(3, len(body), said).marshal(),
            *(pika.frame.Body(3, piece).marshal() for piece in pieces),
        ]
        assert b"".join(Deliveries(3, "tag", frame_max).frames(7, True, message)) == b"".join(theirs)
    assert pika.frame.Heartbeat().marshal() == HEARTBEAT_FRAME
    assert pika.frame.ProtocolHeader().marshal() == PROTOCOL_HEADER


def test_pamqp_reads_what_a_client_of_ours_publishes(pamqp: Any) -> None:
    sent = b"".join(publish(2, basic.Publish("e", "r", True), b"\x00\x00", b"body", 4096))
    found = []
    while sent:
        consumed, channel, frame = pamqp.frame.unmarshal(sent)
        assert channel == 2
        found.append(frame)
        sent = sent[consumed:]
    assert (found[0].exchange, found[0].routing_key, found[0].mandatory) == ("e", "r", True)
    assert (found[1].body_size, found[2].value) == (4, b"body")


def test_a_reader_of_ours_takes_what_pamqp_sends(pamqp: Any) -> None:
    commands = pamqp.commands
    sent = [
        commands.Connection.StartOk({"product": "x"}, "PLAIN", "\0guest\0guest", "en_US"),
        commands.Connection.TuneOk(2047, 131_072, 60),
    ]
    stream = PROTOCOL_HEADER + b"".join(pamqp.frame.marshal(one, 0) for one in sent)
    stream += HEAD.pack(BODY, 1, 0)[:3]
    assert [one.method.name for one in CommandReader(Role.SERVER).feed(stream)] == [
        "connection.start-ok",
        "connection.tune-ok",
    ]

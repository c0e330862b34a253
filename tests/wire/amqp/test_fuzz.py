"""Mutated sessions and captures, cut anywhere: commands or an error of the codec, and never over the limits."""

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from weir.model.errors import WireError
from weir.testing.codecs.amqp_samples import AMQP_CODECS, read_session
from weir.testing.codecs.fuzzing import Codec, fuzz, mutate
from weir.testing.kinds import rounds
from weir.wire.amqp.frames import Role

ROUNDS = rounds(600)


@pytest.mark.parametrize("codec", AMQP_CODECS, ids=lambda codec: codec.name)
def test_mutated_sessions_raise_nothing_but_wire_errors(codec: Codec) -> None:
    dice = Random(f"fuzz {codec.name}")
    for _ in range(30):
        codec.decode(codec.sample(dice))
    refused = fuzz(codec, ROUNDS, dice)
    assert ROUNDS // 8 < refused < ROUNDS


@pytest.fixture
def session() -> bytes:
    """What pika sends, from its first byte on."""
    import pika

    spec, frame = pika.spec, pika.frame
    said: Any = spec.BasicProperties(
        content_type="text/plain", headers={"a": 1, "b": [True, {"c": None}]}, priority=3
    )
    methods = [
        (0, spec.Connection.StartOk({"product": "pika"}, "PLAIN", "\0guest\0guest", "en_US")),
        (0, spec.Connection.TuneOk(2047, 131_072, 60)),
        (0, spec.Connection.Open("/")),
        (1, spec.Channel.Open()),
        (1, spec.Queue.Declare(queue="q", durable=True, arguments={"x-max-priority": 5})),
        (1, spec.Confirm.Select()),
        (1, spec.Basic.Publish(exchange="", routing_key="q", mandatory=True)),
    ]
    sent = [frame.ProtocolHeader().marshal(), *(frame.Method(at, one).marshal() for at, one in methods)]
    sent += [
        frame.Header(1, 10, said).marshal(),
        frame.Body(1, b"hello").marshal(),
        frame.Body(1, b"world").marshal(),
    ]
    sent += [frame.Method(1, spec.Basic.Ack(1, True)).marshal(), frame.Heartbeat().marshal()]
    return b"".join(sent)


def test_a_mutated_capture_raises_nothing_but_wire_errors(session: bytes) -> None:
    read_session(session, Role.SERVER)
    dice = Random("pika")
    for _ in range(ROUNDS):
        with suppress(WireError):
            read_session(mutate(session, dice, session), Role.SERVER)


def test_every_bit_of_a_capture_may_be_wrong(session: bytes) -> None:
    for at in range(8, len(session)):
        wrong = bytearray(session)
        wrong[at] ^= 1 << at % 8
        with suppress(WireError):
            read_session(bytes(wrong), Role.SERVER)


def test_random_bytes() -> None:
    dice = Random("amqp random")
    for _ in range(ROUNDS):
        data = dice.randbytes(dice.randrange(60))
        framed = bytes((dice.choice((1, 2, 3, 8)),)) + b"\x00\x01" + len(data).to_bytes(4, "big") + data + b"\xce"
        for one in (data, framed):
            with suppress(WireError):
                read_session(b"AMQP\x00\x00\x09\x01" + one, Role.SERVER)
            with suppress(WireError):
                read_session(one, Role.CLIENT)

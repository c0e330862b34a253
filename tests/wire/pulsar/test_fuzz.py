"""Random and mutated bytes: the codec answers a value or a WireError, whatever it is fed."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from weir.model.errors import WireError
from weir.testing.kinds import rounds
from weir.wire.checksum import crc32c
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, compress, encode_batch, iter_batch, open_payload
from weir.wire.pulsar.commands import COMMANDS, Command, Type
from weir.wire.pulsar.frames import Frame, decode_frame, encode_command, encode_with_message, refusal, splitter
from weir.wire.pulsar.ids import bits_from_ack_set, id_from_wire
from weir.wire.pulsar.message import (
    broker_entry_head,
    message_key,
    parse_broker_entry,
    parse_metadata,
    seal_message,
    split_message,
    sticky_key,
)
from weir.wire.pulsar.proto import Message

Make = Callable[[type[Message], Random], Any]
COMMAND_ROUNDS = rounds(500)
MESSAGE_ROUNDS = rounds(6_000)
LIMIT = 1 << 20


def mutated(data: bytes, dice: Random) -> bytearray:
    """A few bytes changed, gone, doubled or put in."""
    out = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(5):
            case 0 | 1:
                out[at : at + 1] = bytes([dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))])
            case 2:
                del out[at : at + dice.randrange(1, 6)]
            case 3:
                out[at:at] = dice.randbytes(dice.randrange(1, 6))
            case 4:
                out[at:at] = out[at : at + dice.randrange(1, 12)]
    return out


def read_everything(frame: Frame) -> None:
    """What a gateway would touch: every field has the type that it says, and a refusal can be written."""
    for field, value in frame.command.ListFields():
        if field.type == 9 and not field.is_repeated:
            assert isinstance(value, str)
        if isinstance(value, api.MessageIdData):
            id_from_wire(value)
            bits_from_ack_set(value.ack_set)
    refusal(frame, api.ServerError.UnknownError, "no")
    if frame.message is not None:
        read_message(frame.message)


def read_message(data: memoryview) -> None:
    parts = split_message(data, verify=False)
    parse_broker_entry(parts)
    metadata = parse_metadata(parts)
    sticky_key(metadata)
    payload = open_payload(metadata, parts.payload, LIMIT)
    for single in iter_batch(payload, metadata.num_messages_in_batch):
        message_key(single.metadata)


def sample_message(make: Make, dice: Random) -> bytes:
    payload = encode_batch((make(api.SingleMessageMetadata, dice), dice.randbytes(9)) for _ in range(3))
    kind = dice.choice(list(Compression))
    metadata = make(api.MessageMetadata, dice)
    metadata.ClearField("encryption_keys")
    metadata.num_messages_in_batch = 3
    metadata.compression = kind
    metadata.uncompressed_size = len(payload)
    return b"".join(seal_message(metadata, compress(kind, payload)))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_mutated_frames_of_every_command(make: Make, command: Command) -> None:
    dice = Random(f"frames {command.name}")
    refused = 0
    for _ in range(COMMAND_ROUNDS):
        sent = make(command.kind, dice)
        if command.number in (Type.SEND, Type.MESSAGE):
            data = b"".join(encode_with_message(sent, [sample_message(make, dice)]))
        else:
            data = encode_command(sent)
        try:
            if dice.random() < 0.5:  # with a right length in front, so that mutations reach the command
                read_everything(decode_frame(memoryview(mutated(data[4:], dice))))
            else:
                for body in splitter(LIMIT).feed(mutated(data, dice)):
                    read_everything(decode_frame(body))
        except WireError:
            refused += 1
    assert refused > COMMAND_ROUNDS // 5, "the mutations hardly break anything"


def test_mutated_messages_behind_a_right_checksum(make: Make) -> None:
    dice = Random("messages")
    refused = 0
    for _ in range(MESSAGE_ROUNDS):
        data = mutated(sample_message(make, dice), dice)
        if len(data) > 6:
            data[2:6] = crc32c(memoryview(data)[6:]).to_bytes(4, "big")
        head = broker_entry_head(1, 2) if dice.random() < 0.3 else b""
        if dice.random() < 0.1:
            head = bytes(mutated(head, dice))
        try:
            read_message(memoryview(head + data))
        except WireError:
            refused += 1
    assert MESSAGE_ROUNDS // 5 < refused < MESSAGE_ROUNDS


def test_random_bytes() -> None:
    dice = Random("random")
    for _ in range(rounds(20_000)):
        data = dice.randbytes(dice.randrange(60))
        number = dice.choice(list(COMMANDS))
        inside = COMMANDS[number].envelope + bytes([len(data)]) + data
        for body in (data, len(inside).to_bytes(4, "big") + inside):
            with suppress(WireError):
                read_everything(decode_frame(memoryview(body)))
            with suppress(WireError):
                read_message(memoryview(body))


def test_deep_nesting_is_refused_and_not_followed() -> None:
    inside = b"\x08\x01\x10\x01"
    for _ in range(500):
        size = len(inside)
        inside = (
            b"\x08\x01\x10\x01\x3a"
            + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7]))
            + inside
        )
    send = b"\x08\x01\x10\x01\x4a" + bytes([len(inside) & 127 | 128, len(inside) >> 7]) + inside
    envelope = b"\x08\x06\x32" + bytes([len(send) & 127 | 128, len(send) >> 7]) + send
    with pytest.raises(WireError):
        decode_frame(memoryview(len(envelope).to_bytes(4, "big") + envelope))

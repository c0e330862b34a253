"""Frames that the official client once sent, kept as bytes: they mean the same, and are made again the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Compression, encode_batch, iter_batch, open_payload
from weir.wire.pulsar.commands import COMMANDS, Type
from weir.wire.pulsar.frames import Frame, decode_frame, encode_command, encode_with_message
from weir.wire.pulsar.ids import bits_from_ack_set, id_from_wire
from weir.wire.pulsar.message import parse_metadata, seal_message, split_message


def captured() -> Iterator[tuple[str, bytes]]:
    for line in (Path(__file__).parent / "captured_3_13_0.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, data = line.split()
            yield name, bytes.fromhex(data)


FRAMES = list(captured())
SENDS = [decode_frame(memoryview(data)) for name, data in FRAMES if name == "SEND"]


def only(kind: type) -> list[Frame]:
    frames = [decode_frame(memoryview(data)) for _, data in FRAMES]
    return [frame for frame in frames if isinstance(frame.command, kind)]


@pytest.mark.parametrize(("name", "data"), FRAMES, ids=[name for name, _ in FRAMES])
def test_a_frame_is_made_again_byte_by_byte(name: str, data: bytes) -> None:
    frame = decode_frame(memoryview(data))
    assert COMMANDS[frame.type].name == name
    if frame.message is None:
        again = encode_command(frame.command)
    else:
        assert isinstance(frame.command, api.CommandSend)
        parts = split_message(frame.message)
        message = seal_message(parse_metadata(parts), parts.payload)
        again = b"".join(encode_with_message(frame.command, message))
    assert again[4:] == data


@pytest.mark.parametrize(("send", "kind"), list(zip(SENDS, Compression, strict=True)))
def test_a_batch_of_every_compression_opens(send: Frame, kind: Compression) -> None:
    assert send.message is not None
    parts = split_message(send.message)
    metadata = parse_metadata(parts)
    payload = open_payload(metadata, parts.payload)
    found = list(iter_batch(payload, metadata.num_messages_in_batch))

    assert metadata.compression == kind
    assert metadata.producer_name == "golden"
    assert [bytes(single.payload) for single in found] == [b"golden " * times for times in (1, 2, 3)]
    assert [single.metadata.partition_key for single in found] == ["k0", "k1", "k2"]
    assert [single.metadata.event_time for single in found] == [1_700_000_000_000 + at for at in range(3)]
    assert encode_batch(found) == payload


def test_the_rest_says_what_the_client_was_told_to_do() -> None:
    (connect,) = only(api.CommandConnect)
    assert connect.command.protocol_version == 20  # type: ignore[attr-defined]
    (ack,) = only(api.CommandAck)
    assert isinstance(ack.command, api.CommandAck)
    assert id_from_wire(ack.command.message_id[0])[:2] == (7, 0)
    assert bits_from_ack_set(ack.command.message_id[0].ack_set) == 0b101
    (seek,) = only(api.CommandSeek)
    assert seek.command.message_publish_time == 1_700_000_000_000  # type: ignore[attr-defined]
    assert {Type.SUBSCRIBE, Type.FLOW, Type.PRODUCER, Type.LOOKUP} <= {
        decode_frame(memoryview(d)).type for _, d in FRAMES
    }

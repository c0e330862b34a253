"""Levels of priority in batches of every format, compressed or not."""

from dataclasses import replace

import pytest

from weir.broker.subscriptions.queue_mode import levels_in
from weir.model.batch import Batch, BatchFormat
from weir.model.check import finish
from weir.model.messages import Message
from weir.wire.formats.messages import encode_messages
from weir.wire.formats.table import FORMATS
from weir.wire.pulsar.translation import entry_of_messages

SAID = [Message(None, b"x" * 500, [("weir-priority", b"4")]), Message(None, b"y" * 500, [("other", b"9")])]
SILENT = [Message(None, b"x" * 500), Message(None, b"y" * 500, [("weir", b"4")])]


def batch(kind: BatchFormat, payload: bytes, count: int = 2) -> Batch:
    return Batch(0, count, kind, 0, payload)


def pulsar(messages: list[Message], *, compressed: bool) -> Batch:
    steps = entry_of_messages(messages, producer="p", sequence=0, most_bytes=1 if compressed else None)
    return batch(BatchFormat.PULSAR, finish(steps))


def kafka(messages: list[Message]) -> Batch:
    own = batch(BatchFormat.MESSAGES, encode_messages(messages))
    joined = finish(FORMATS[BatchFormat.KAFKA].join(own, messages, None))
    return batch(BatchFormat.KAFKA, b"".join(bytes(piece) for piece in joined.pieces))


@pytest.mark.parametrize(
    "made",
    [
        lambda messages: batch(BatchFormat.MESSAGES, encode_messages(messages)),
        lambda messages: pulsar(messages, compressed=False),
        lambda messages: pulsar(messages, compressed=True),
        kafka,
    ],
    ids=["messages", "pulsar", "compressed", "kafka"],
)
def test_levels_are_found_in_every_format(made) -> None:
    levels_of = levels_in(FORMATS)
    assert levels_of(made(SAID)) == [4, 0]
    assert levels_of(made(SILENT)) is None


@pytest.mark.parametrize("value", [b"-1", b"high", b"", b"12345678901", b"1.5", None])
def test_what_is_no_number_is_no_level(value: bytes | None) -> None:
    payload = encode_messages([Message(None, b"x", [("weir-priority", value)])])
    assert levels_in(FORMATS)(batch(BatchFormat.MESSAGES, payload, 1)) is None


@pytest.mark.parametrize("kind", list(BatchFormat))
def test_what_cannot_be_opened_has_no_levels(kind: BatchFormat) -> None:
    levels_of = levels_in(FORMATS)
    assert levels_of(batch(kind, b"weir-priority")) is None
    assert levels_of(batch(kind, b"")) is None
    assert levels_of(replace(batch(BatchFormat.MESSAGES, encode_messages(SAID)), count=3)) is None

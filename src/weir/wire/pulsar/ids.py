"""Message ids and ack sets as values.

A position is `ledger:entry`, in a partition, and within a batch `batch_index`. The protocol sends ledger and entry
unsigned, yet its clients mean -1 by the largest number ("before the first"), so here they are signed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.proto import MAX_U64, parse, serialize

MAX_I64 = 2**63 - 1


class MessageId(NamedTuple):
    """Where a message lies; -1 for a partition or batch index that does not matter."""

    ledger: int
    entry: int
    partition: int = -1
    batch_index: int = -1

    def __str__(self) -> str:
        """The form that Pulsar's tools print and the admin REST takes."""
        return ":".join(map(str, self))


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(MAX_I64, MAX_I64)


def id_from_wire(data: api.MessageIdData) -> MessageId:
    return MessageId(signed(data.ledgerId), signed(data.entryId), data.partition, data.batch_index)


def id_to_wire(at: MessageId) -> api.MessageIdData:
    data = api.MessageIdData(ledgerId=at.ledger & MAX_U64, entryId=at.entry & MAX_U64)
    if at.partition >= 0:
        data.partition = at.partition
    if at.batch_index >= 0:
        data.batch_index = at.batch_index
    return data


def encode_id(at: MessageId) -> bytes:
    """The bytes that clients keep for later (`MessageId.serialize` in theirs)."""
    return serialize(id_to_wire(at))


def decode_id(data: Buffer) -> MessageId:
    return id_from_wire(parse(api.MessageIdData, data))


def parse_id(text: str) -> MessageId:
    """`ledger:entry[:partition[:batch index]]`."""
    parts = text.split(":")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 4 or not all(-1 <= number <= MAX_I64 for number in numbers):
        raise WireError(f"{text!r} is not a message id", hint="write ledger:entry, as in 12:0")
    return MessageId(*numbers)


def signed(number: int) -> int:
    """A 64-bit number, read as signed."""
    return number - 2**64 if number > MAX_I64 else number


def bits_from_ack_set(words: Iterable[int]) -> int:
    """An ack set as one number: bit i is set while message i of the batch is not acknowledged."""
    return int.from_bytes(b"".join((word & MAX_U64).to_bytes(8, "little") for word in words), "little")


def ack_set_from_bits(bits: int) -> list[int]:
    """The same as signed 64-bit words, without zeros at the end: none at all when all is acknowledged."""
    words = -(-bits.bit_length() // 64)
    data = bits.to_bytes(8 * words, "little")
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, 8 * words, 8)]


def unacknowledged(batch_size: int) -> int:
    """The bits of a batch of which nothing is acknowledged yet."""
    return (1 << batch_size) - 1

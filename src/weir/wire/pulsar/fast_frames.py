"""The frames that go out once per entry, built from templates instead of protobuf objects.

Bytes equal to what the objects make (a test holds the two together), at a fraction of the cost: measured by
bench/micro_pulsar_codec.py. What stays the same for a producer or consumer is joined once; what changes from
one entry to the next is a number or two.

The sends that most clients send most of the time, taken out of a receive buffer without a protobuf object.

A plain send is one message of one producer, whole, with its checksum: the command has the producer's id and a
sequence id, the metadata the producer's name, a sequence id, a publish time, perhaps the size. Everything in it is
compared with one pattern and the lengths that the frame states; what differs in any way is left where it is, for
`decode_frame` to take or to refuse. A test holds the two together.
"""

import re
from struct import Struct
from typing import NamedTuple

from weir.wire.checksum import crc32c
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Type, enveloped
from weir.wire.pulsar.frames import encode_command
from weir.wire.pulsar.ids import ack_set_from_bits
from weir.wire.pulsar.message import BROKER_ENTRY_MAGIC
from weir.wire.pulsar.proto import MAX_U64, varint

PING = encode_command(api.CommandPing())
PONG = encode_command(api.CommandPong())

_SIZES = Struct(">II")  # total, size of the command
_MAGIC_AND_SIZE = Struct(">HI")
_LENGTH = [bytes((length,)) for length in range(128)]  # of what is shorter than 128 bytes, as these commands are
_MESSAGE = COMMANDS[Type.MESSAGE].envelope
_RECEIPT = COMMANDS[Type.SEND_RECEIPT].envelope
_ACK_RESPONSE = COMMANDS[Type.ACK_RESPONSE].envelope


class Deliveries:
    """What stands in front of each message that is delivered to one consumer."""

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self._consumer_id = consumer_id
        self._partition = partition
        self._tail = _partition(partition)
        self._ledger_id = -1
        #: Length of the entry id's varint to the length of the command and all of it up to the entry id.
        self._heads: dict[int, tuple[int, bytes]] = {}

    def head(self, ledger_id: int, entry_id: int, message_bytes: int) -> bytes:
        """The frame up to its message, which has `message_bytes` and is delivered whole and for the first time."""
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._heads = {}
        entry = varint(entry_id)
        found = self._heads.get(len(entry))
        if found is None:
            found = self._heads[len(entry)] = self._head(len(entry))
        size, head = found
        return b"".join((_SIZES.pack(4 + size + message_bytes, size), head, entry, self._tail))

    def _head(self, entry_bytes: int) -> tuple[int, bytes]:
        position = b"\x08" + varint(self._ledger_id) + b"\x10"
        position_bytes = len(position) + entry_bytes + len(self._tail)
        consumer = b"\x08" + varint(self._consumer_id) + b"\x12" + _LENGTH[position_bytes]
        command_bytes = len(consumer) + position_bytes
        size = len(_MESSAGE) + 1 + command_bytes
        return size, _MESSAGE + _LENGTH[command_bytes] + consumer + position

    def again(
        self,
        ledger_id: int,
        entry_id: int,
        message_bytes: int,
        *,
        redelivery_count: int = 0,
        unacknowledged: int = 0,
        consumer_epoch: int | None = None,
    ) -> bytes:
        """The same for what is rarer: a redelivery, a batch of which a part is acknowledged, an epoch.

        `unacknowledged` are the bits of an ack set; zero sends none, which means the whole batch.
        """
        position = api.MessageIdData(ledgerId=ledger_id & MAX_U64, entryId=entry_id & MAX_U64)
        if self._partition >= 0:
            position.partition = self._partition
        command = api.CommandMessage(
            consumer_id=self._consumer_id,
            message_id=position,
            redelivery_count=redelivery_count or None,
            ack_set=ack_set_from_bits(unacknowledged),
            consumer_epoch=consumer_epoch,
        )
        data = enveloped(command)
        return _SIZES.pack(4 + len(data) + message_bytes, len(data)) + data


class Receipts:
    """The receipts of one producer."""

    def __init__(self, producer_id: int, partition: int = -1) -> None:
        self._producer = b"\x08" + varint(producer_id) + b"\x10"
        self._partition = _partition(partition)
        self._ledger_id = -1
        self._ledger = b"\x08" + varint(-1) + b"\x10"
        #: Lengths of the varints of a sequence id and of an entry id to what stands before and between them.
        self._around: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def frame(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> bytes:
        """The receipt of what was sent as `sequence_id`, a batch up to `highest_sequence_id` (zero: not known).

        A message dropped as a duplicate lies nowhere: ledger and entry are -1.
        """
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._ledger = b"\x08" + varint(ledger_id) + b"\x10"
            self._around = {}
        sequence, entry = varint(sequence_id), varint(entry_id)
        if highest_sequence_id:
            before, between = self._make_around(len(sequence), len(entry), 1 + len(varint(highest_sequence_id)))
            highest = b"\x20" + varint(highest_sequence_id)
            return b"".join((before, sequence, between, entry, self._partition, highest))
        lengths = len(sequence), len(entry)
        around = self._around.get(lengths)
        if around is None:
            around = self._around[lengths] = self._make_around(*lengths, 0)
        return b"".join((around[0], sequence, around[1], entry, self._partition))

    def _make_around(self, sequence_bytes: int, entry_bytes: int, highest_bytes: int) -> tuple[bytes, bytes]:
        position_bytes = len(self._ledger) + entry_bytes + len(self._partition)
        between = b"\x1a" + _LENGTH[position_bytes] + self._ledger
        command_bytes = len(self._producer) + sequence_bytes + 2 + position_bytes + highest_bytes
        size = len(_RECEIPT) + 1 + command_bytes
        before = b"".join((_SIZES.pack(4 + size, size), _RECEIPT, _LENGTH[command_bytes], self._producer))
        return before, between


class BrokerEntries:
    """Broker entry metadata, as `message.broker_entry_head` makes it."""

    def __init__(self) -> None:
        self._timestamp_ms = -1
        self._timestamp = b""

    def head(self, timestamp_ms: int, index: int) -> bytes:
        """What stands in front of a message that came then, the last of its batch at offset `index`."""
        if timestamp_ms != self._timestamp_ms:  # many batches come in one millisecond
            self._timestamp_ms = timestamp_ms
            self._timestamp = b"\x08" + varint(timestamp_ms) + b"\x10"
        body = self._timestamp + varint(index)
        return _MAGIC_AND_SIZE.pack(BROKER_ENTRY_MAGIC, len(body)) + body


def ack_response(consumer_id: int, request_id: int) -> bytes:
    """The acknowledgements of a request are done."""
    return _frame(_ACK_RESPONSE, b"\x08" + varint(consumer_id) + b"\x30" + varint(request_id))


def _partition(partition: int) -> bytes:
    return b"\x18" + varint(partition) if partition >= 0 else b""


def _frame(envelope: bytes, command: bytes) -> bytes:
    size = len(envelope) + 1 + len(command)
    return b"".join((_SIZES.pack(4 + size, size), envelope, _LENGTH[len(command)], command))


#: Total, size of the command, (its envelope,) size of the command without it.
_HEAD = Struct(">II3xB")
_CHECKSUM_AND_SIZE = Struct(">II")
#: A varint of at most 63 bits, in however many bytes.
_NUMBER = rb"[\x80-\xff]{0,8}[\x00-\x7f]"


class PlainSend(NamedTuple):
    """A send's sequence id, and its message as it is stored."""

    sequence: int
    message: bytes


_new = tuple.__new__


class PlainSends:
    """Those of one producer."""

    def __init__(self, producer_id: int, name: str) -> None:
        producer, named = varint(producer_id), name.encode()
        self._match = re.compile(
            rb".{8}"
            + re.escape(COMMANDS[Type.SEND].envelope)
            + rb".\x08"
            + re.escape(producer)
            + rb"\x10("
            + _NUMBER
            + rb")(?:\x18\x01)?()\x0e\x01.{8}\x0a"
            + re.escape(varint(len(named)) + named)
            + rb"\x10"
            + _NUMBER
            + rb"\x18"
            + _NUMBER
            + rb"(?:\x40\x00)?(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?",
            re.DOTALL,
        ).match

    def take(self, view: memoryview, at: int, *, count: int, size: int, limit: int) -> tuple[list[PlainSend], int]:
        """The plain sends that lie one after the other, whole, from `at` on, and where they end: at most `count`,
        and none after the one with which their frames reach `size` bytes. A frame longer than `limit` is none."""
        sends: list[PlainSend] = []
        match, left, stop = self._match, count, at + size
        while left and at < stop and (found := match(view, at)) is not None:
            total, command, rest = _HEAD.unpack_from(view, at)
            end, magic = at + 4 + total, at + 8 + command
            if total > limit or end > len(view) or command != rest + 4 or found.start(2) != magic:
                break
            checksum, metadata = _CHECKSUM_AND_SIZE.unpack_from(view, magic + 2)
            if found.end() != magic + 10 + metadata or found.end() > end:
                break
            if crc32c(view[magic + 6 : end]) != checksum:
                break
            sequence = shift = 0
            for group in found[1]:
                sequence |= (group & 0x7F) << shift
                shift += 7
            sends.append(_new(PlainSend, (sequence, bytes(view[magic:end]))))
            at = end
            left -= 1
        return sends, at

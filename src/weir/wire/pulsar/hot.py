"""The frames that go out once per entry, built from templates instead of protobuf objects.

Bytes equal to what the objects make (a test holds the two together), at a fraction of the cost: measured by
bench/micro_pulsar_codec.py. What stays the same for a producer or consumer is joined once; what changes from
one entry to the next is a number or two.
"""

from struct import Struct

from weir.wire.pulsar.commands import COMMANDS, Type, enveloped
from weir.wire.pulsar.frames import encode_command
from weir.wire.pulsar.ids import ack_set_from_bits
from weir.wire.pulsar.message import BROKER_ENTRY_MAGIC
from weir.wire.pulsar.proto import api
from weir.wire.pulsar.varint import MAX_U64, varint

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

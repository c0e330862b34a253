"""Frames from templates are the bytes that protobuf would have made."""

from hypothesis import given
from hypothesis import strategies as st

from weir.wire.pulsar import fast_frames
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.ids import MessageId, bits_from_ack_set, id_to_wire
from weir.wire.pulsar.message import broker_entry_head
from weir.wire.pulsar.proto import varint

ID = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.sampled_from([127, 128, 16383, 16384, 2**21]))
POSITION = st.one_of(st.integers(-1, 2**63 - 1), st.integers(-1, 70_000))
PARTITION = st.integers(-1, 2**31 - 1)
MESSAGE = b"message"


@given(st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**22)))
def test_a_varint_is_protobufs(value: int) -> None:
    unsigned = value & 2**64 - 1
    assert varint(value) == api.BrokerEntryMetadata(index=unsigned).SerializeToString()[1:]


@given(consumer=ID, partition=PARTITION, positions=st.lists(st.tuples(POSITION, POSITION), max_size=5))
def test_deliveries(consumer: int, partition: int, positions: list[tuple[int, int]]) -> None:
    deliveries = fast_frames.Deliveries(consumer, partition)
    for ledger, entry in positions:
        position = id_to_wire(MessageId(ledger, entry, partition))
        plain, _ = encode_with_message(api.CommandMessage(consumer_id=consumer, message_id=position), [MESSAGE])
        assert deliveries.head(ledger, entry, len(MESSAGE)) == plain
        assert deliveries.again(ledger, entry, len(MESSAGE)) == plain


def test_a_redelivery_says_how_often_and_what_is_left() -> None:
    head = fast_frames.Deliveries(1, 3).again(
        7, 9, len(MESSAGE), redelivery_count=2, unacknowledged=1 << 70, consumer_epoch=4
    )
    (body,) = splitter().feed(head + MESSAGE)
    command = decode_frame(body).command
    assert isinstance(command, api.CommandMessage)
    assert (command.redelivery_count, command.consumer_epoch) == (2, 4)
    assert bits_from_ack_set(command.ack_set) == 1 << 70
    assert (command.message_id.ledgerId, command.message_id.entryId, command.message_id.partition) == (7, 9, 3)


@given(producer=ID, partition=PARTITION, sends=st.lists(st.tuples(ID, ID, POSITION, POSITION), max_size=5))
def test_receipts(producer: int, partition: int, sends: list[tuple[int, int, int, int]]) -> None:
    receipts = fast_frames.Receipts(producer, partition)
    for sequence, highest, ledger, entry in sends:
        plain = api.CommandSendReceipt(
            producer_id=producer,
            sequence_id=sequence,
            message_id=id_to_wire(MessageId(ledger, entry, partition)),
            highest_sequence_id=highest or None,
        )
        assert receipts.frame(sequence, highest, ledger, entry) == encode_command(plain)


@given(consumer=ID, request=ID)
def test_ack_responses(consumer: int, request: int) -> None:
    plain = encode_command(api.CommandAckResponse(consumer_id=consumer, request_id=request))
    assert fast_frames.ack_response(consumer, request) == plain


def test_broker_entries() -> None:
    entries = fast_frames.BrokerEntries()
    for timestamp_ms, index in ((0, 0), (1_700_000_000_000, 127), (1_700_000_000_000, 2**40), (5, 2**63 - 1)):
        assert entries.head(timestamp_ms, index) == broker_entry_head(timestamp_ms, index)

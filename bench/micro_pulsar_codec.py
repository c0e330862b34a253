"""Microseconds per operation of the Pulsar codec: hot paths beside their plain forms."""

from collections.abc import Callable
from time import process_time
from timeit import repeat

from weir.wire.pulsar import fast_frames
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import encode_batch, iter_batch
from weir.wire.pulsar.frames import _decode_any, decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.message import parse_metadata, seal_message, split_message

ROUNDS = 20_000
PAYLOAD = bytes(100)


def measure(name: str, operation: Callable[[], object], per: int = 1) -> None:
    """CPU time, the best of nine runs: the others were disturbed."""
    best = min(repeat(operation, number=ROUNDS // per, repeat=9, timer=process_time))
    print(f"{name:<52}{best / (ROUNDS // per) / per * 1e6:8.2f}")


def main() -> None:
    metadata = api.MessageMetadata(
        producer_name="standalone-0-1", sequence_id=123456, publish_time=1_700_000_000_000
    )
    send = api.CommandSend(producer_id=3, sequence_id=123456, num_messages=10, highest_sequence_id=123465)
    message = b"".join(seal_message(metadata, PAYLOAD))
    stored = memoryview(message)
    frame = b"".join(encode_with_message(send, [message]))
    body = memoryview(frame)[4:]
    received = frame * 100
    deliveries, receipts = fast_frames.Deliveries(7), fast_frames.Receipts(3)

    def whole_entry_in() -> None:
        for one in splitter().feed(received):
            found = decode_frame(one)
            assert found.message is not None
            parse_metadata(split_message(found.message))

    def receipt_plain() -> bytes:
        position = api.MessageIdData(ledgerId=77, entryId=123456)
        return encode_command(
            api.CommandSendReceipt(
                producer_id=3, sequence_id=123456, message_id=position, highest_sequence_id=123465
            )
        )

    ack = api.CommandAck(
        consumer_id=7,
        ack_type=api.CommandAck.Individual,
        message_id=[api.MessageIdData(ledgerId=77, entryId=123456)],
        request_id=9,
    )
    ack_body = memoryview(encode_command(ack))[4:]
    batch = encode_batch((api.SingleMessageMetadata(sequence_id=at), PAYLOAD) for at in range(100))

    print(f"{'operation (100 B payload)':<52}{'us':>8}")
    measure("in: frame, command, checksum, metadata", whole_entry_in, per=100)
    measure("in: SEND, envelope skipped", lambda: decode_frame(body))
    measure("in: SEND, envelope parsed", lambda: _decode_any(body))
    measure("in: checksum and split", lambda: split_message(stored))
    measure("in: metadata", lambda: parse_metadata(split_message(stored, verify=False)))
    measure("in: ACK of one message", lambda: decode_frame(ack_body))
    measure("in: one message of a batch of 100", lambda: list(iter_batch(batch, 100)), per=100)
    measure("out: MESSAGE from template", lambda: deliveries.head(77, 123456, len(message)))
    measure("out: MESSAGE as object", lambda: deliveries.again(77, 123456, len(message)))
    measure("out: SEND_RECEIPT from template", lambda: receipts.frame(123456, 123465, 77, 123456))
    measure("out: SEND_RECEIPT as object", receipt_plain)
    measure("out: ACK_RESPONSE from template", lambda: fast_frames.ack_response(7, 123456))
    measure(
        "out: ACK_RESPONSE as object",
        lambda: encode_command(api.CommandAckResponse(consumer_id=7, request_id=123456)),
    )
    measure("out: SEND with checksum (client)", lambda: encode_with_message(send, seal_message(metadata, PAYLOAD)))


if __name__ == "__main__":
    main()

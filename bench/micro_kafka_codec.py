"""Microseconds per operation of the Kafka codec: the messages of every produce and every fetch, both roles."""

from collections.abc import Callable
from time import process_time
from timeit import repeat

from weir.model.ids import Buffer
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.frames import RequestHeader, decode_request_header, request_frame, response_frame

ROUNDS = 10_000
RECORDS = bytes(1024)
TOPIC_ID = bytes(range(16))


def measure(name: str, operation: Callable[[], object], per: int = 1) -> None:
    """CPU time, the best of seven runs: the others were disturbed."""
    best = min(repeat(operation, number=ROUNDS // per, repeat=7, timer=process_time))
    print(f"{name:<56}{best / (ROUNDS // per) * 1e6:8.2f}")


def produce_request(partitions: int) -> m.ProduceRequest:
    kind = m.ProduceRequest
    data = [kind.PartitionProduceData(index=at, records=RECORDS) for at in range(partitions)]
    return kind(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[kind.TopicProduceData(name="orders", topic_id=TOPIC_ID, partition_data=data)],
    )


def produce_response(partitions: int) -> m.ProduceResponse:
    kind = m.ProduceResponse
    done = [kind.PartitionProduceResponse(index=at, base_offset=123_456) for at in range(partitions)]
    return kind(responses=[kind.TopicProduceResponse(name="orders", topic_id=TOPIC_ID, partition_responses=done)])


def fetch_request(partitions: int) -> m.FetchRequest:
    kind = m.FetchRequest
    wanted = [
        kind.FetchPartition(partition=at, fetch_offset=123_456, partition_max_bytes=1 << 20)
        for at in range(partitions)
    ]
    topic = kind.FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=wanted)
    return kind(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])


def fetch_response(partitions: int, records: Buffer | list[Buffer] | None) -> m.FetchResponse:
    kind = m.FetchResponse
    data = [
        kind.PartitionData(
            partition_index=at,
            high_watermark=123_456,
            last_stable_offset=123_456,
            log_start_offset=0,
            records=records,
        )
        for at in range(partitions)
    ]
    topic = kind.FetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=data)
    return kind(session_id=7, responses=[topic])


def both_ways(name: str, key: ApiKey, version: int, request: m.Message, response: m.Message, per: int = 1) -> None:
    asked = b"".join(codec.encode_request(key, version, request))
    answered = b"".join(codec.encode_response(key, version, response))
    title = f"{name} v{version}"
    measure(f"broker: {title} request in", lambda: codec.decode_request(key, version, asked), per)
    measure(f"broker: {title} response out", lambda: codec.encode_response(key, version, response), per)
    measure(f"client: {title} request out", lambda: codec.encode_request(key, version, request), per)
    measure(f"client: {title} response in", lambda: codec.decode_response(key, version, answered), per)


def main() -> None:
    print(f"{'operation':<56}{'us':>8}")
    for version in (7, 12):
        both_ways("Produce, 1 partition", ApiKey.PRODUCE, version, produce_request(1), produce_response(1))
    for version in (11, 16):
        answer = fetch_response(1, RECORDS)
        both_ways("Fetch, 1 partition", ApiKey.FETCH, version, fetch_request(1), answer)
    for version in (11, 16):
        scattered: list[Buffer] = [RECORDS, RECORDS]
        answer = fetch_response(64, scattered)
        both_ways("Fetch, 64 partitions", ApiKey.FETCH, version, fetch_request(64), answer, per=20)
    measure("broker: Fetch, 64 empty partitions v16 response out", idle, per=20)
    header = RequestHeader(ApiKey.PRODUCE, 12, 4711, "rdkafka")
    frame = b"".join(request_frame(header, produce_request(1)))[4:]
    answer_one = produce_response(1)
    measure("broker: header in", lambda: decode_request_header(frame))
    measure("broker: Produce frame out", lambda: response_frame(ApiKey.PRODUCE, 12, 4711, answer_one))


_IDLE = fetch_response(64, b"")


def idle() -> list[Buffer]:
    return codec.encode_response(ApiKey.FETCH, 16, _IDLE)


if __name__ == "__main__":
    main()

"""What a worker reads and writes: committed records, retries, dead letters, options, and keys to partitions."""

import pytest

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.settings import KafkaSettings
from weir.functions import micro_batch
from weir.functions.executor_protocol import Item
from weir.functions.input import KeyedState, committed_records
from weir.functions.options import FunctionOptions, from_text, to_text
from weir.functions.output import Routes, murmur2
from weir.model.batch import Stamp
from weir.model.definitions import Function
from weir.model.errors import ConfigError, NotAllowedError
from weir.model.messages import death_in
from weir.model.retry import RetryPolicy, parse_schedule
from weir.model.topics import TopicName
from weir.wire.kafka.record_batch import TRANSACTIONAL, patched
from weir.wire.kafka.records import Record, build_batch, control_batch

ORDERS = TopicName.parse("orders")
FUNCTION = Function(TopicName.parse("clean"), "1", 1, "", "f.py", "f", (ORDERS,))


def batch(base: int, *values: bytes, producer: int = -1) -> bytes:
    records = [Record(at, 1000, b"k", value) for at, value in enumerate(values)]
    stamp = Stamp(producer, 0, 0)
    attributes = TRANSACTIONAL if producer >= 0 else 0
    return build_batch(records, base_offset=base, attributes=attributes, stamp=stamp)


def marker(base: int, producer: int, *, commit: bool) -> bytes:
    return b"".join(bytes(piece) for piece in patched(control_batch(producer, 0, commit, 1000), base))


def test_records_of_aborted_transactions_and_markers_are_left_out_and_passed() -> None:
    data = b"".join(
        (
            batch(0, b"a", b"b"),
            batch(2, b"undone", producer=7),
            batch(3, b"kept", producer=8),
            marker(4, 7, commit=False),
            batch(5, b"again", producer=7),
            marker(6, 7, commit=True),
            marker(7, 8, commit=True),
        )
    )
    found, after = committed_records(memoryview(data), 1, [(7, 2)])
    assert [(at, bytes(record.value or b"")) for at, record in found] == [(1, b"b"), (3, b"kept"), (5, b"again")]
    assert after == 8


def test_a_message_that_failed_waits_and_is_then_what_it_was() -> None:
    policy = RetryPolicy(parse_schedule("1s 10s"), 3)
    item = Item(str(ORDERS), 2, 40, b"k", b"v", [("h", b"1"), ("n", None)], 1000, attempt=2)
    record = micro_batch.again(item, policy)
    assert (b"weir-deliver-after", b"10000") in record.headers
    back = micro_batch.item_of(record, FUNCTION.retry_topic, 0, 99, waited=True)
    assert back == Item(str(ORDERS), 2, 40, b"k", b"v", [("h", b"1"), ("n", None)], 1000, attempt=3)
    assert b"weir-deliver-after" not in dict(micro_batch.again(item, RetryPolicy(parse_schedule("0"), 3)).headers)


def test_a_dead_letter_says_what_those_of_the_server_say_and_the_error() -> None:
    item = Item(str(ORDERS), 2, 40, b"k", b"v", [("h", b"1")], 1000, attempt=3)
    record = micro_batch.dead_letter(item, FUNCTION, "boom", 5000, partitioned=True)
    headers = [(bytes(name).decode(), value) for name, value in record.headers]
    death = death_in([(name, None if value is None else bytes(value)) for name, value in headers])
    assert death is not None
    assert (death.reason, death.deliveries, death.topic, death.offset) == ("delivery_limit", 3, ORDERS.at(2), 40)
    assert (death.subscription, death.stored_ms, death.died_ms) == ("fn-clean", 1000, 5000)
    assert dict(headers)["weir-dead-error"] == b"boom"
    assert str(micro_batch.dead_letter_topic(item, FUNCTION, RetryPolicy())).endswith("/orders-fn-clean-DLQ")
    whole = micro_batch.dead_letter(item, FUNCTION, "boom", 5000, partitioned=False)
    assert b"weir-dead-partition" not in dict(whole.headers)


def test_state_counts_its_keys_and_bytes_and_forgets_what_is_deleted() -> None:
    state = KeyedState()
    state.hold({b"a": b"12", b"": b"3"})
    assert (len(state.values), state.bytes) == (2, 4)
    assert [(one.key, one.value) for _, one in state.records("t", {b"": None}, 5)] == [(b"k", None)]
    state.hold({b"a": None, b"": b"33", b"b": None})
    assert (state.values, state.bytes) == ({b"": b"33"}, 2)


def test_options_come_back_from_text_and_only_what_differs_is_written() -> None:
    assert to_text(FunctionOptions()) == {}
    options = FunctionOptions(
        parallelism=4, stateful=True, batch=False, timeout_s=1.5, retry="1s 10s", config={"a.b": "c"}
    )
    assert from_text(to_text(options)) == options
    for wrong in ({"parallelism": "0"}, {"on": "moon"}, {"nope": "1"}, {"linger_ms": "x"}, {"ordered": "maybe"}):
        with pytest.raises(ConfigError):
            from_text(wrong)
    with pytest.raises(ConfigError, match="state by key"):
        from_text({"stateful": "true", "batch": "true"})
    with pytest.raises(NotAllowedError):
        from_text({"retry": "soon"})


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_keys_go_where_kafkas_clients_send_them(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_partitions_that_the_output_got_later_are_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, count = Cluster(KafkaSettings(servers=())), [1]
    monkeypatch.setattr(cluster, "partitions", lambda *_, **__: [Partition("out", at) for at in range(count[0])])
    routes = Routes(cluster)
    assert {routes.of("out", str(at).encode()).index for at in range(50)} == {0}
    count[0] = 3
    routes.look_anew()
    assert {routes.of("out", str(at).encode()).index for at in range(50)} == {0, 1, 2}

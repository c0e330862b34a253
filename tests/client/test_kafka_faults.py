"""The blocking Kafka client goes on when brokers close connections, lead no more, or answer strangely."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from struct import pack, unpack
from typing import Any

import pytest

from weir.client.kafka.cluster import Cluster, Partition, admin_url, open_transactions
from weir.client.kafka.fetch import Fetcher, ends
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import Address, KafkaSettings, Login
from weir.model import errors
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import API, ApiKey
from weir.wire.kafka.frames import decode_request_header, response_frame

ORDERS = Partition("orders", 0)
HANG_UP = object()


class FakeBroker:
    """Answers as it is told; `answers[key]` is asked with each request of that API."""

    def __init__(self) -> None:
        broker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                broker.connections += 1
                while head := self.rfile.read(4):
                    header, body = decode_request_header(self.rfile.read(unpack(">i", head)[0]))
                    request = codec.decode_request(header.api_key, header.api_version, body)
                    broker.asked.append(ApiKey(header.api_key))
                    answer = broker.answers[ApiKey(header.api_key)](request)
                    if answer is HANG_UP:
                        return
                    if isinstance(answer, bytes):
                        self.wfile.write(answer)
                        return
                    frame = response_frame(header.api_key, header.api_version, header.correlation_id, answer)
                    self.wfile.write(b"".join(frame))

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = Address("127.0.0.1", self.server.server_address[1])
        self.asked: list[ApiKey] = []
        self.connections = 0
        self.leader = self
        self.answers: dict[ApiKey, Callable[[Any], Any]] = {
            ApiKey.API_VERSIONS: lambda request: versions(),
            ApiKey.METADATA: lambda request: metadata(self.leader),
        }
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def versions() -> m.ApiVersionsResponse:
    kinds = [
        m.ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[1])
        for key, api in API.items()
    ]
    return m.ApiVersionsResponse(api_keys=kinds)


def metadata(leader: FakeBroker, error: int = 0) -> m.MetadataResponse:
    part = m.MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=7)
    topic = m.MetadataResponse.MetadataResponseTopic(name="orders", partitions=[part], error_code=error)
    broker = m.MetadataResponse.MetadataResponseBroker(
        node_id=7, host=leader.address.host, port=leader.address.port
    )
    return m.MetadataResponse(brokers=[broker], topics=[topic])


def offset(found: int, error: int = 0) -> m.ListOffsetsResponse:
    part = m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=found, error_code=error)
    return m.ListOffsetsResponse(
        topics=[m.ListOffsetsResponse.ListOffsetsTopicResponse(name="orders", partitions=[part])]
    )


def fetched(records: bytes, error: int = 0) -> m.FetchResponse:
    part = m.FetchResponse.PartitionData(partition_index=0, records=records, error_code=error)
    return m.FetchResponse(responses=[m.FetchResponse.FetchableTopicResponse(topic="orders", partitions=[part])])


def produced(base_offset: int, error: int = 0) -> m.ProduceResponse:
    part = m.ProduceResponse.PartitionProduceResponse(index=0, base_offset=base_offset, error_code=error)
    return m.ProduceResponse(
        responses=[m.ProduceResponse.TopicProduceResponse(name="orders", partition_responses=[part])]
    )


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    """Each answer once, then the last one for ever."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    found = FakeBroker()
    yield found
    found.close()


@pytest.fixture
def other() -> Iterator[FakeBroker]:
    found = FakeBroker()
    yield found
    found.close()


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(KafkaSettings((broker.address,), retry_for_s=20)) as found:
        yield found


def test_a_closed_connection_is_opened_again(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[ApiKey.LIST_OFFSETS] = in_turn(HANG_UP, HANG_UP, offset(5))
    assert ends(cluster, [ORDERS]) == {ORDERS: 5}
    assert broker.connections == 3


def test_the_new_leader_is_found_when_another_broker_leads(
    broker: FakeBroker, other: FakeBroker, cluster: Cluster
) -> None:
    def moved(request: object) -> m.ListOffsetsResponse:
        broker.leader = other
        return offset(-1, error=6)

    broker.answers[ApiKey.LIST_OFFSETS] = moved
    other.answers[ApiKey.LIST_OFFSETS] = in_turn(offset(9))
    assert ends(cluster, [ORDERS]) == {ORDERS: 9}


def test_a_server_that_is_not_there_is_passed_over(broker: FakeBroker) -> None:
    broker.answers[ApiKey.LIST_OFFSETS] = in_turn(offset(5))
    gone = FakeBroker()
    gone.close()
    with Cluster(KafkaSettings((gone.address, broker.address))) as cluster:
        assert ends(cluster, [ORDERS]) == {ORDERS: 5}


def test_a_broker_that_was_told_of_is_asked_when_the_only_server_is_gone(other: FakeBroker) -> None:
    server = FakeBroker()
    server.leader = other
    other.answers[ApiKey.LIST_OFFSETS] = in_turn(HANG_UP, offset(5))
    with Cluster(KafkaSettings((server.address,), retry_for_s=20)) as cluster:
        assert cluster.partitions(["orders"]) == [ORDERS]
        server.answers[ApiKey.METADATA] = lambda request: HANG_UP
        server.close()
        assert ends(cluster, [ORDERS]) == {ORDERS: 5}


def test_a_server_that_hung_up_is_asked_last(broker: FakeBroker, other: FakeBroker) -> None:
    broker.answers[ApiKey.METADATA] = in_turn(HANG_UP)
    other.answers[ApiKey.LIST_OFFSETS] = in_turn(offset(5))
    with Cluster(KafkaSettings((broker.address, other.address), retry_for_s=20)) as cluster:
        assert ends(cluster, [ORDERS]) == {ORDERS: 5}
        cluster.close()
        assert ends(cluster, [ORDERS]) == {ORDERS: 5}
    assert broker.connections == 1


def test_open_transactions_are_those_that_any_broker_knows(broker: FakeBroker, other: FakeBroker) -> None:
    def knows(*names: str) -> Callable[[Any], Any]:
        states = [m.ListTransactionsResponse.TransactionState(transactional_id=name) for name in names]
        return lambda request: m.ListTransactionsResponse(transaction_states=states)

    both = metadata(broker)
    both.brokers.append(
        m.MetadataResponse.MetadataResponseBroker(node_id=8, host=other.address.host, port=other.address.port)
    )
    broker.answers[ApiKey.METADATA] = in_turn(both)
    broker.answers[ApiKey.LIST_TRANSACTIONS] = knows("a/1", "b/1")
    other.answers[ApiKey.LIST_TRANSACTIONS] = knows("a/2")
    with Cluster(KafkaSettings((broker.address,))) as cluster:
        assert open_transactions(cluster, "a/") == ["a/1", "a/2"]


def test_where_the_admin_api_is_is_told_by_a_broker_that_is_there(broker: FakeBroker) -> None:
    gone = FakeBroker()
    gone.close()
    told = m.DescribeClusterResponse(controller_id=1)
    told.brokers = [
        m.DescribeClusterResponse.DescribeClusterBroker(broker_id=number, host=one.host, port=one.port)
        for number, one in ((1, gone.address), (2, broker.address))
    ]

    def configs(request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        (asked,) = request.resources
        url = m.DescribeConfigsResponse.DescribeConfigsResourceResult(name="weir.http.url", value="http://h:1")
        known = [url] if asked.resource_name == "2" else []
        return m.DescribeConfigsResponse(results=[m.DescribeConfigsResponse.DescribeConfigsResult(configs=known)])

    broker.answers[ApiKey.DESCRIBE_CLUSTER] = in_turn(told)
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = configs
    with Cluster(KafkaSettings((broker.address,))) as cluster:
        assert admin_url(cluster) == "http://h:1"


def test_patience_ends_with_the_reason() -> None:
    gone = FakeBroker()
    gone.close()
    with (
        Cluster(KafkaSettings((gone.address,), retry_for_s=0)) as cluster,
        pytest.raises(errors.ConnectFailedError, match=str(gone.address)),
    ):
        cluster.topics()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (3, errors.TopicNotFoundError),
        (29, errors.NotAuthorisedError),
        (17, errors.InvalidNameError),
        (999, errors.BrokerError),
    ],
)
def test_a_refusal_is_an_error_of_the_tree_and_not_tried_again(
    broker: FakeBroker, cluster: Cluster, code: int, error: type[errors.WeirError]
) -> None:
    broker.answers[ApiKey.METADATA] = lambda request: metadata(broker, error=code)
    with pytest.raises(error, match="orders"):
        cluster.partitions(["orders"])
    assert broker.asked.count(ApiKey.METADATA) == 1


def test_wrong_credentials_are_not_tried_again(broker: FakeBroker) -> None:
    broker.answers[ApiKey.SASL_HANDSHAKE] = lambda request: m.SaslHandshakeResponse(mechanisms=["PLAIN"])
    broker.answers[ApiKey.SASL_AUTHENTICATE] = lambda request: m.SaslAuthenticateResponse(
        error_code=58, error_message="no such token"
    )
    with (
        Cluster(KafkaSettings((broker.address,), login=Login("u", "p"))) as cluster,
        pytest.raises(errors.NotAuthenticatedError, match="no such token"),
    ):
        cluster.topics()
    assert broker.connections == 1


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(pack(">i", -5), id="a negative size"),
        pytest.param(pack(">i", 2_000_000_000), id="an enormous size"),
        pytest.param(pack(">ii", 4, 12345), id="another correlation id"),
        pytest.param(pack(">i", 1) + b"x", id="no room for a header"),
    ],
)
def test_a_strange_answer_is_a_wire_error(broker: FakeBroker, cluster: Cluster, strange: bytes) -> None:
    broker.answers[ApiKey.METADATA] = lambda request: strange
    with pytest.raises(errors.WireError):
        cluster.topics()


def test_a_fetch_goes_on_after_a_lost_connection_and_a_moved_leader(broker: FakeBroker, cluster: Cluster) -> None:
    offsets: list[int] = []

    def fetch(request: m.FetchRequest) -> Any:
        offsets.append(request.topics[0].partitions[0].fetch_offset)
        return {1: HANG_UP, 2: fetched(b"", error=6)}.get(len(offsets), fetched(b"records"))

    broker.answers[ApiKey.FETCH] = fetch
    fetcher = Fetcher(cluster, ORDERS)
    fetcher.ask(42, 1000)
    assert bytes(fetcher.take().records) == b"records"
    assert offsets == [42, 42, 42]


def test_a_fetch_of_what_is_gone_is_an_error(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[ApiKey.FETCH] = lambda request: fetched(b"", error=1)
    fetcher = Fetcher(cluster, ORDERS)
    fetcher.ask(42, 1000)
    with pytest.raises(errors.OffsetTrimmedError, match="orders-0 at offset 42"):
        fetcher.take()


def test_what_was_not_answered_is_sent_again_in_its_order(broker: FakeBroker, cluster: Cluster) -> None:
    seen: list[bytes] = []

    def store(request: m.ProduceRequest) -> Any:
        seen.append(bytes(request.topic_data[0].partition_data[0].records or b""))
        return HANG_UP if len(seen) == 2 else produced(len(seen))

    broker.answers[ApiKey.PRODUCE] = store
    sender = Sender(cluster, window=3)
    for batch in (b"one", b"two", b"three", b"four"):
        sender.send({ORDERS: batch})
    sender.flush()
    first_two, rest = seen[:2], seen[2:]
    assert first_two == [b"one", b"two"]
    # What came after the lost one may have been under way, or not; the last of each is in the order of sending.
    assert [batch for at, batch in enumerate(rest) if batch not in rest[at + 1 :]][-3:] == [
        b"two",
        b"three",
        b"four",
    ]
    assert sender.stored[ORDERS] == len(seen)


def test_a_producer_that_was_fenced_is_told(broker: FakeBroker, cluster: Cluster) -> None:
    broker.answers[ApiKey.PRODUCE] = lambda request: produced(-1, error=47)
    sender = Sender(cluster)
    sender.send({ORDERS: b"one"})
    with pytest.raises(errors.StaleEpochError):
        sender.flush()

"""The blocking Kafka client on a whole Weir: batches in and out, positions, transactions, TLS and tokens."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from weir.broker.security.tokens import create_token, load_secret
from weir.client.kafka import groups, produce
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import NONE, Fetched, Fetcher, ends, list_offsets, starts
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import KafkaSettings, Login, TlsFiles, parse_servers
from weir.model.batch import Stamp
from weir.model.errors import ConnectFailedError, NotAuthenticatedError, StaleEpochError, TopicNotFoundError
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess
from weir.wire.kafka.record_batch import TRANSACTIONAL, parse_header, split_batches
from weir.wire.kafka.records import Record, build_batch

pytestmark = pytest.mark.process

ORDERS = [Partition("orders", index) for index in range(3)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path_factory.mktemp("weir")).start()
    admin = AdminClient({"bootstrap.servers": process.kafka})
    names = ("orders", "times", "transfers", "doubles")
    for made in admin.create_topics([NewTopic(name, 3) for name in names]).values():
        made.result(30)
    yield process
    process.close()


@pytest.fixture
def cluster(up: UpProcess) -> Iterator[Cluster]:
    with Cluster(KafkaSettings(parse_servers(up.kafka))) as found:
        yield found


def batch(*values: bytes, at_ms: int = 1000, stamp: Stamp | None = None, attributes: int = 0) -> bytes:
    records = [Record(at, at_ms + at, None, value) for at, value in enumerate(values)]
    return build_batch(records, stamp=stamp or Stamp(-1, -1, -1), attributes=attributes)


def fetch(cluster: Cluster, partition: Partition, offset: int = 0, *, committed: bool = True) -> Fetched:
    fetcher = Fetcher(cluster, partition, committed=committed)
    fetcher.ask(offset, 1_000_000)
    return fetcher.take()


def test_batches_go_in_and_come_out_as_they_were(cluster: Cluster) -> None:
    assert cluster.partitions(["orders"]) == ORDERS
    assert "orders" in cluster.topics()
    sender = Sender(cluster, window=2)
    for step in range(5):
        sender.send({ORDERS[0]: batch(b"a", b"b"), ORDERS[2]: batch(f"c{step}".encode())})
    sender.flush()
    assert sender.stored == {ORDERS[0]: 8, ORDERS[2]: 4}
    assert ends(cluster, ORDERS) == {ORDERS[0]: 10, ORDERS[1]: 0, ORDERS[2]: 5}
    assert starts(cluster, ORDERS) == dict.fromkeys(ORDERS, 0)
    found = fetch(cluster, ORDERS[0], 5)
    assert [parse_header(one).base_offset for one in split_batches(found.records)] == [4, 6, 8]
    assert (found.start_offset, found.end_offset, found.stable_offset) == (0, 10, 10)


def test_a_moment_has_an_offset_unless_it_is_too_late(cluster: Cluster) -> None:
    partition = Partition("times", 0)
    sender = Sender(cluster)
    sender.send({partition: batch(b"a", b"b", b"c", at_ms=5000)})
    sender.flush()
    assert list_offsets(cluster, {partition: 5001}) == {partition: 1}
    assert list_offsets(cluster, {partition: 6000}) == {partition: NONE}


def test_a_topic_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(TopicNotFoundError, match="nowhere"):
        cluster.partitions(["nowhere"])
    with pytest.raises(TopicNotFoundError, match="no partition 9"):
        cluster.leader(Partition("orders", 9))


def test_positions_are_kept(cluster: Cluster) -> None:
    wanted = {ORDERS[0]: 3, ORDERS[2]: 1}
    groups.commit(cluster, "billing", wanted, "note")
    assert groups.committed(cluster, "billing", ORDERS) == wanted
    groups.commit(cluster, "billing", {ORDERS[0]: 1})
    assert groups.committed(cluster, "billing", ORDERS) == wanted | {ORDERS[0]: 1}


def test_a_batch_that_is_sent_twice_is_stored_once(cluster: Cluster) -> None:
    partition = Partition("doubles", 0)
    producer = produce.init_producer(cluster)
    stamped = batch(b"a", b"b", stamp=Stamp(producer.id, producer.epoch, 0))
    for _ in range(2):
        sender = Sender(cluster)
        sender.send({partition: stamped})
        sender.flush()
    assert ends(cluster, [partition]) == {partition: 2}


def test_a_transaction_is_seen_when_it_is_committed_and_never_when_it_is_aborted(cluster: Cluster) -> None:
    parts = [Partition("transfers", 0), Partition("transfers", 1)]
    for commit in (False, True):
        producer = produce.init_producer(cluster, "mover")
        produce.add_partitions(cluster, "mover", producer, parts)
        sender = Sender(cluster, transactional_id="mover")
        stamp = Stamp(producer.id, producer.epoch, 0)
        sender.send(dict.fromkeys(parts, batch(b"x", stamp=stamp, attributes=TRANSACTIONAL)))
        sender.flush()
        before = ends(cluster, parts)
        assert ends(cluster, parts, committed=False) != before
        produce.end(cluster, "mover", producer, commit=commit)
        # The markers that decide it may be written after the answer.
        deadline = time.monotonic() + 30
        while not all(after > before[part] for part, after in ends(cluster, parts).items()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    found = fetch(cluster, parts[0])
    assert [first for _, first in found.aborted] == [0]
    assert fetch(cluster, parts[0], committed=False).aborted == []


def test_a_newer_producer_of_the_same_transactional_id_fences_the_older(cluster: Cluster) -> None:
    old = produce.init_producer(cluster, "fenced")
    produce.init_producer(cluster, "fenced")
    with pytest.raises(StaleEpochError):
        produce.add_partitions(cluster, "fenced", old, [Partition("transfers", 0)])


# --- who may come in ------------------------------------------------------------------------------------

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder = tmp_path_factory.mktemp("secured")
    made = make_certificate(folder, "cert")
    (folder / "secret").write_bytes(SECRET)
    settings = (
        "listeners.kafka_tls=127.0.0.1:0",
        f"tls.certificate={made.file}",
        f"tls.key={made.key_file}",
        "auth.authenticate=true",
        f"auth.token_secret=file:{folder}/secret",
    )
    process = UpProcess(folder, *settings).start()
    yield process
    process.close()


def test_a_token_over_tls_comes_in(secured: UpProcess) -> None:
    token = create_token(load_secret(SECRET).key, "spark")
    tls = TlsFiles(ca=str(secured.data.parent / "cert.pem"))
    servers = parse_servers(secured.addresses["kafka_tls"])
    with Cluster(KafkaSettings(servers, tls=tls, login=Login("any", token))) as cluster:
        assert cluster.topics() == []
    with (
        Cluster(KafkaSettings(servers, tls=tls, login=Login("any", "wrong"))) as cluster,
        pytest.raises(NotAuthenticatedError),
    ):
        cluster.topics()
    with (
        Cluster(KafkaSettings(servers, tls=TlsFiles(), retry_for_s=0)) as cluster,
        pytest.raises(ConnectFailedError, match="certificate"),
    ):
        cluster.topics()

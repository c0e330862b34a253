"""The brokers as a client knows them: which topics there are, who leads what, and connections to them.

What may succeed later is tried again, with everything looked up anew in between, until patience ends.

What the brokers say of themselves: where their admin API is, and which transactions are open.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from weir.client.access import Refusals
from weir.client.kafka.connection import RETRIABLE, KafkaConnection, check, error_of
from weir.client.kafka.settings import Address, KafkaSettings
from weir.model.errors import ConfigError, ConnectFailedError, NetworkError, TopicNotFoundError, WeirError
from weir.wire.kafka import messages as m

T = TypeVar("T")
log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
#: After so long whoever looks on is told what is waited for.
_TELL_S = 5.0
_GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of a topic, by Kafka's names."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True)
class Described:
    """A topic that there is. One that was deleted and made again has another id."""

    topic_id: str
    partitions: tuple[Partition, ...]


class Cluster:
    """Open connections are kept until it is closed. Not shared between threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._connections: dict[Address, KafkaConnection] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[Partition, Address] = {}
        #: Which topic of its name each is, when it was last asked for; empty where brokers do not say.
        self.topic_ids: dict[str, str] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        #: Those that could not be reached or did not answer, the latest last: others are asked before them.
        self._doubtful: dict[Address, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next question opens new ones, and looks everything up anew."""
        for connection in self._connections.values():
            connection.close()
            if connection.broken:
                self._doubt(connection.address)
        self._connections.clear()
        self._leaders.clear()
        self._coordinators.clear()

    def is_quiet(self) -> bool:
        """Whether no answer is on its way, and no connection was closed by the other end."""
        return all(connection.is_quiet() for connection in self._connections.values())

    def forget_transactions(self) -> None:
        """Each has a coordinator; whoever goes on with other ones need not know who it was."""
        self._coordinators = {key: address for key, address in self._coordinators.items() if key[0] != TRANSACTION}

    # --- what there is ---

    def partitions(self, topics: Sequence[str], *, create: bool = False) -> list[Partition]:
        """All partitions of these topics; TopicNotFoundError names one that does not exist, and is not made by
        being asked for."""
        return self.retry(lambda: self._look_up(topics, create=create)) if topics else []

    def topics(self) -> list[str]:
        """The names of all topics that may be seen, without the cluster's own."""
        found = self.retry(lambda: self._metadata(None))
        return sorted(one.name for one in found.topics if one.name and not one.is_internal and not one.error_code)

    def topic_id(self, topic: str) -> str:
        """Which topic of this name it is: one that was deleted and made again has another."""

        def ask() -> str:
            for one in self._metadata([topic]).topics:
                check(one.error_code, topic)
                return one.topic_id.hex()
            raise TopicNotFoundError(f"there is no topic {topic}")

        return self.retry(ask)

    def describe(self, topics: Sequence[str]) -> "dict[str, Described | WeirError]":
        """Each of these topics, or what is wrong with it: none of many is in the way of the others."""

        def ask() -> dict[str, Described | WeirError]:
            found: dict[str, Described | WeirError] = {}
            for topic in self._metadata(topics).topics:
                try:
                    found[topic.name or ""] = Described(topic.topic_id.hex(), tuple(self._led(topic)))
                except WeirError as refused:
                    found[topic.name or ""] = refused
            return found

        return self.retry(ask) if topics else {}

    def _look_up(self, topics: Sequence[str], *, create: bool = False) -> list[Partition]:
        return sorted(part for topic in self._metadata(topics, create=create).topics for part in self._led(topic))

    def _led(self, topic: m.MetadataResponse.MetadataResponseTopic) -> list[Partition]:
        """A topic's partitions, whose leaders are known from now on."""
        name = topic.name or ""
        check(topic.error_code, name)
        self.topic_ids[name] = topic.topic_id.hex() if any(topic.topic_id) else ""
        found = []
        for part in topic.partitions:
            partition = Partition(name, part.partition_index)
            leader = self._brokers.get(part.leader_id)
            if leader is None:
                raise error_of(5, str(partition))
            self._leaders[partition] = leader
            found.append(partition)
        return sorted(found)

    def _metadata(self, topics: Sequence[str] | None, *, create: bool = False) -> m.MetadataResponse:
        wanted = None if topics is None else [m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        found = self.any().ask(request, m.MetadataResponse)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in found.brokers}
        return found

    # --- whom to ask ---

    def any(self) -> KafkaConnection:
        """A connection to some broker: one that is open, or else to the first server that answers; to those that
        were named, and then to those that they told of, which may be all that are left."""
        if self._connections:
            return next(iter(self._connections.values()))
        failure: WeirError = ConnectFailedError("no servers are named")
        known = dict.fromkeys((*self.settings.servers, *self._brokers.values()))
        doubts = list(self._doubtful)
        for address in sorted(known, key=lambda one: doubts.index(one) if one in doubts else -1):
            try:
                return self.connection(address)
            except NetworkError as failed:
                failure = failed
        raise failure

    def everyone(self) -> list[KafkaConnection]:
        """A connection to each broker that there is."""
        self._metadata([])
        return [self.connection(address) for address in self._brokers.values()]

    def connection(self, address: Address) -> KafkaConnection:
        found = self._connections.get(address)
        if found is None:
            try:
                found = self._connections[address] = KafkaConnection(address, self.settings)
            except NetworkError:
                self._doubt(address)
                raise
            self._doubtful.pop(address, None)
        return found

    def _doubt(self, address: Address) -> None:
        self._doubtful.pop(address, None)
        self._doubtful[address] = None

    def leader(self, partition: Partition) -> Address:
        if partition not in self._leaders:
            self._look_up([partition.topic])
        try:
            return self._leaders[partition]
        except KeyError:
            raise TopicNotFoundError(f"{partition.topic} has no partition {partition.index}") from None

    def by_leader(self, partitions: Iterable[Partition]) -> dict[Address, list[Partition]]:
        found: dict[Address, list[Partition]] = {}
        for partition in partitions:
            found.setdefault(self.leader(partition), []).append(partition)
        return found

    def group_coordinator(self, group: str) -> KafkaConnection:
        return self._coordinator(_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> KafkaConnection:
        return self._coordinator(TRANSACTION, transactional_id)

    def _coordinator(self, kind: int, key: str) -> KafkaConnection:
        address = self._coordinators.get((kind, key))
        if address is None:
            request = m.FindCoordinatorRequest(key=key, key_type=kind)
            found = self.any().ask(request, m.FindCoordinatorResponse)
            check(found.error_code, key, found.error_message)
            address = self._coordinators[kind, key] = Address(found.host, found.port)
        return self.connection(address)

    # --- patience ---

    def retry(self, work: Callable[[], T]) -> T:
        """What `work` answers, as soon as it does; it must be fit to be done twice."""
        patience = Patience(self.settings.retry_for_s)
        while True:
            try:
                return work()
            except RETRIABLE as failure:
                self.close()
                patience.wait(failure)
            except BaseException:
                # Answers may be on their way that nobody will take.
                with suppress(OSError):
                    self.close()
                raise


class Patience:
    """Waits a little longer each time, and at last raises what it was given."""

    def __init__(self, seconds: float) -> None:
        now = time.monotonic()
        self._deadline, self._tell = now + seconds, now + min(seconds, _TELL_S)
        self._pause_s = _FIRST_PAUSE_S
        self._refusals = Refusals()

    def wait(self, failure: WeirError) -> None:
        now = time.monotonic()
        if self._refusals.final(failure) or now + self._pause_s > self._deadline:
            raise failure
        if now >= self._tell:
            self._tell = self._deadline
            log.warning("%s; it is tried again for %.0f s", failure.what, self._deadline - now)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


_TOPIC, _BROKER = 2, 4
_EXISTS = 36
_HTTP_URL = "weir.http.url"


def admin_url(cluster: Cluster) -> str:
    """The admin REST of the broker that answers; ConfigError if it is no Weir, or has none."""

    def ask() -> str:
        about = cluster.any().ask(m.DescribeClusterRequest(), m.DescribeClusterResponse)
        check(about.error_code, "the cluster", about.error_message)
        # Each tells of itself alone; the first that can be reached will do.
        number, connection = _first_of(cluster, about)
        wanted = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(number), configuration_keys=[_HTTP_URL]
        )
        told = connection.ask(m.DescribeConfigsRequest(resources=[wanted]), m.DescribeConfigsResponse)
        for result in told.results:
            check(result.error_code, "the broker's configs", result.error_message)
            for config in result.configs:
                if config.name == _HTTP_URL and config.value:
                    return config.value
        raise ConfigError("the broker does not tell its admin API's address", hint="give the option adminUrl")

    return cluster.retry(ask)


def topic_config(cluster: Cluster, topic: str, name: str) -> str:
    """One of a topic's configs; empty if there is none of this name."""
    wanted = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=[name]
    )

    def ask() -> str:
        told = cluster.any().ask(m.DescribeConfigsRequest(resources=[wanted]), m.DescribeConfigsResponse)
        for result in told.results:
            check(result.error_code, topic, result.error_message)
            for config in result.configs:
                if config.name == name:
                    return config.value or ""
        return ""

    return cluster.retry(ask)


def create_topic(cluster: Cluster, topic: str, configs: Mapping[str, str], *, partitions: int = 1) -> None:
    """A topic with these configs; one that is there stays as it is."""
    wanted = m.CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[
            m.CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()
        ],
    )
    request = m.CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)

    def ask() -> None:
        for one in cluster.any().ask(request, m.CreateTopicsResponse).topics:
            if one.error_code != _EXISTS:
                check(one.error_code, topic, one.error_message)

    cluster.retry(ask)


def stored_sequences(cluster: Cluster, partitions: Sequence[Partition], producer_id: int) -> dict[Partition, int]:
    """The last sequence number of an idempotent producer in each partition that knows of it."""

    def ask() -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for address, parts in cluster.by_leader(partitions).items():
            request = m.DescribeProducersRequest(
                topics=[
                    m.DescribeProducersRequest.TopicRequest(name=part.topic, partition_indexes=[part.index])
                    for part in parts
                ]
            )
            told = cluster.connection(address).ask(request, m.DescribeProducersResponse)
            for topic in told.topics:
                for one in topic.partitions:
                    place = Partition(topic.name, one.partition_index)
                    check(one.error_code, str(place), one.error_message)
                    for producer in one.active_producers:
                        if producer.producer_id == producer_id:
                            found[place] = producer.last_sequence
        return found

    return cluster.retry(ask)


def open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """Transactional ids with this prefix whose transaction is open."""
    request = m.ListTransactionsRequest(state_filters=["Ongoing"])

    def ask() -> list[str]:
        found: set[str] = set()
        for connection in cluster.everyone():  # each knows those that it coordinates
            told = connection.ask(request, m.ListTransactionsResponse)
            check(told.error_code, "transactions")
            found.update(one.transactional_id for one in told.transaction_states)
        return sorted(name for name in found if name.startswith(prefix))

    return cluster.retry(ask)


def _first_of(cluster: Cluster, about: m.DescribeClusterResponse) -> tuple[int, KafkaConnection]:
    failure: WeirError = ConnectFailedError("the cluster names no brokers")
    for broker in about.brokers:
        try:
            return broker.broker_id, cluster.connection(Address(broker.host, broker.port))
        except ConnectFailedError as failed:
            failure = failed
    raise failure

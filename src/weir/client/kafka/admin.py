"""What the brokers say of themselves: where their admin API is, and which transactions are open."""

from collections.abc import Mapping, Sequence

from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import KafkaConnection
from weir.client.kafka.refusals import check
from weir.client.kafka.settings import Address
from weir.model.errors import ConfigError, ConnectFailedError, WeirError
from weir.wire.kafka import messages as m

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

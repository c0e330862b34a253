"""What tests of replays share: selections that are written by hand, and names that nobody else has."""

import time
from collections.abc import Callable
from dataclasses import replace

from weir.client.blocking import Access
from weir.model.replays import Replay
from weir.spark.replay.selecting import make_selection
from weir.spark.sql.cluster import WeirCluster
from weir.wire.kafka.records_build import Record, build_batch

from .conftest import Topics


def new_name(what: str) -> str:
    return f"{what}-{time.time_ns()}"


def place_of(topics: Topics) -> WeirCluster:
    return WeirCluster(Access(topics.up.http_url, patience_s=5.0), topics.servers)


def selecting(topics: Topics, place: WeirCluster, partitions: dict[int, list[str]]) -> Callable[[Replay], None]:
    """As Spark would: the messages, with their headers, in the partitions that they go to."""

    def select(replay: Replay) -> None:
        name = make_selection(place, replay, max(partitions) + 1).local
        told = [(b"weir-replay-id", replay.id.encode()), (b"weir-replay-offset", b"7")]
        if replay.subscription is not None:
            told.append((b"weir-replay-subscription", replay.subscription.encode()))
        for partition, values in partitions.items():
            records = [
                Record(at, 1_700_000_000_000 + at, value.encode(), value.encode(), told)
                for at, value in enumerate(values)
            ]
            for record in records:  # batches of one: they are delivered in others
                topics.send(name, build_batch([replace(record, offset_delta=0)]), partition)

    return select

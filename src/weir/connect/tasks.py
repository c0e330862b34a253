"""From a definition to the task that does it; a type's module is imported when it is needed."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from weir.client.kafka.cluster import Cluster
from weir.client.registry import kafka_name
from weir.client.sinks import forget
from weir.connect.inlet import forget_group
from weir.connect.outlet import delete_topic, positions_topic
from weir.connect.task import Job, Task
from weir.model.errors import WeirError

_CLASSES = {"postgresql": "Postgresql", "files": "Files", "http": "Http", "kafka": "Kafka", "pulsar": "Pulsar"}


def make_task(job: Job) -> Task:
    """ConfigError if it cannot be done as it is defined."""
    definition = job.definition
    spark = definition.options.get("engine") == "spark"
    module = import_module(f"weir.connect.{definition.side}s.{'spark_' if spark else ''}{definition.type}")
    name = f"{'Spark' if spark else ''}{_CLASSES[definition.type]}{definition.side.capitalize()}"
    kind: Callable[[Job], Task] = getattr(module, name)
    return kind(job)


def clean_up(job: Job) -> None:
    """Leave nothing of a connector that was removed but what it carried: no positions, no subscription."""
    if job.definition.side == "sink":
        forget_group(job)
        if job.definition.type == "kafka":
            _forget_there(job)
        if job.option("start") != "latest":
            return
    with Cluster(job.place.kafka) as cluster:
        delete_topic(cluster, kafka_name(positions_topic(job)))
    if job.definition.side == "source" and job.definition.options.get("engine") == "spark":
        from weir.connect.sources.spark_files import sink_id

        with suppress(WeirError):
            forget(job.place.access, sink_id(job))


def _forget_there(job: Job) -> None:
    """Positions in another cluster; one that is away keeps them, by a name that nobody else has."""
    from weir.connect.other_kafka import other_kafka
    from weir.connect.sinks.kafka import positions_there

    with suppress(WeirError), Cluster(other_kafka(job)) as cluster:
        delete_topic(cluster, positions_there(job))

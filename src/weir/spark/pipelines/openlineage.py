"""Runs as events of OpenLineage: which flow read and wrote what, when it began, and how it ended."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from weir import __version__
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.producing import Sender
from weir.client.kafka.settings import KafkaSettings
from weir.model.errors import ConfigError, NetworkError
from weir.spark.pipelines.graph import Dataset, FlowEdge, Graph, Kind
from weir.spark.pipelines.spec import Spec
from weir.wire.kafka.records_build import Record, build_batch

Event = dict[str, Any]
Send = Callable[[Sequence[Event]], None]

_PRODUCER = f"urn:weir:{__version__}"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
_API = "/api/v1/lineage"
_TIMEOUT_S = 10.0


def events(spec: Spec, graph: Graph, servers: str, *, run: UUID, kind: str, why: str | None = None) -> list[Event]:
    """One for the pipeline and one for each flow. `kind`: START, COMPLETE, FAIL or ABORT; `why`: what failed."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    whole: Event = {
        "eventType": kind,
        "eventTime": now,
        "producer": _PRODUCER,
        "schemaURL": _SCHEMA,
        "run": {"runId": str(run), "facets": _error(why)},
        "job": _job(spec, spec.name, "PIPELINE"),
        "inputs": [_dataset(spec, one, servers) for one in graph.datasets.values() if one.kind is Kind.SOURCE],
        "outputs": [_dataset(spec, one, servers) for one in graph.datasets.values() if one.kind is Kind.SINK],
    }
    return [whole, *(_of_flow(whole, spec, graph, flow, servers) for flow in graph.flows)]


def _of_flow(whole: Event, spec: Spec, graph: Graph, flow: FlowEdge, servers: str) -> Event:
    run = whole["run"]
    parent = {
        **_facet("1-1-0/ParentRunFacet.json#/$defs/ParentRunFacet"),
        "run": {"runId": run["runId"]},
        "job": {"namespace": spec.namespace, "name": spec.name},
    }
    return whole | {
        "run": {
            "runId": str(uuid5(UUID(run["runId"]), flow.name)),
            "facets": {"parent": parent, **run["facets"]},
        },
        "job": _job(spec, f"{spec.name}.{flow.name}", "FLOW"),
        "inputs": [_dataset(spec, _known(graph, name), servers) for name in flow.inputs],
        "outputs": [_dataset(spec, _known(graph, flow.target), servers)],
    }


def _known(graph: Graph, name: str) -> Dataset:
    return graph.datasets.get(name, Dataset(name, Kind.OUTSIDE))


def _job(spec: Spec, name: str, kind: str) -> Event:
    facet = {
        **_facet("2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"),
        "processingType": "STREAMING",
        "integration": "WEIR",
        "jobType": kind,
    }
    return {"namespace": spec.namespace, "name": name, "facets": {"jobType": facet}}


def _dataset(spec: Spec, dataset: Dataset, servers: str) -> Event:
    """Topics by OpenLineage's names for those of Kafka; the others by their pipeline's."""
    facets: Event = {}
    if dataset.columns:
        fields = [{"name": name, "type": kind} for name, kind in dataset.columns]
        facets["schema"] = {**_facet("1-1-1/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet"), "fields": fields}
    if dataset.topic is not None:
        first = servers.partition(",")[0]
        return {"namespace": f"kafka://{first}", "name": dataset.topic, "facets": facets}
    return {"namespace": spec.namespace, "name": f"{spec.name}.{dataset.name}", "facets": facets}


def _facet(schema: str) -> Event:
    return {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}/{schema}"}


def _error(why: str | None) -> Event:
    if why is None:
        return {}
    facet = _facet("1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet")
    return {"errorMessage": {**facet, "message": why, "programmingLanguage": "python"}}


# --- where they go ----------------------------------------------------------------------------------------------


def sender(where: str, folder: Path, kafka: Callable[[], KafkaSettings]) -> Send:
    """`topic:NAME`, a URL, or a file (below `folder`), whose lines they become."""
    if where.startswith("topic:"):
        return lambda found: _to_topic(found, where.removeprefix("topic:"), kafka())
    if where.startswith(("http://", "https://")):
        return lambda found: _to_url(found, where)
    if "://" in where:
        raise ConfigError(f"events cannot go to {where}", hint="give a file, an http URL, or topic:NAME")
    return lambda found: _to_file(found, folder / where)


def _to_file(found: Sequence[Event], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in found)


def _to_url(found: Sequence[Event], url: str) -> None:
    """As OpenLineage's own clients send them: one by one, to its path unless the URL has one."""
    whole = url if urlsplit(url).path.strip("/") else url.rstrip("/") + _API
    for one in found:
        request = urllib.request.Request(
            whole, json.dumps(one).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
        except (urllib.error.URLError, OSError) as failure:
            raise NetworkError(f"{whole} did not take events: {failure}") from None


def _to_topic(found: Sequence[Event], topic: str, settings: KafkaSettings) -> None:
    """Keyed by the job, so that those of one job stay in order."""
    with Cluster(settings) as cluster:
        partitions = cluster.partitions([topic], create=True)
        sending = Sender(cluster)
        at_ms = round(datetime.now(UTC).timestamp() * 1000)
        by_job: Mapping[str, list[Event]] = {}
        for one in found:
            by_job = {**by_job, one["job"]["name"]: [*by_job.get(one["job"]["name"], []), one]}
        for job, mine in by_job.items():
            records = [Record(at, at_ms, job.encode(), json.dumps(one).encode()) for at, one in enumerate(mine)]
            partition = partitions[sum(job.encode()) % len(partitions)]
            sending.send({partition: build_batch(records)})
        sending.flush()

"""What tests of the lake share: exports by the one Spark session, tables looked at with pyiceberg."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.client.admin import Access
from weir.client.schemas import topic_of
from weir.model.topics import TopicName
from weir.spark.lake.catalog import Definition, namespace_lake, turn_on
from weir.spark.lake.export import Exported, Exporter, Jobs
from weir.spark.lake.table import LakeTable, find_table
from weir.spark.tables.names import WeirCluster

from .conftest import Topics


class Lake:
    """One lake in a folder of its own."""

    def __init__(self, topics: Topics, folder: Path, jobs: Jobs) -> None:
        access = Access(topics.up.http_url, patience_s=5.0)
        self.place = WeirCluster(access, topics.servers)
        self.definition = Definition(f"file://{folder}/lake", f"sqlite:///{folder}/lake/catalog.db")
        self.exporter = Exporter(self.place, jobs)

    def on(self, topic: str) -> TopicName:
        name = topic_of(topic)
        turn_on(self.place.access, name.namespace, name.local, self.definition)
        return name

    def on_for_others(self, topic: str) -> TopicName:
        """As `on`, and tables that are made here are the namespace's own, for `weir lake run` too."""
        name = self.on(topic)
        found = namespace_lake(self.place.access, name.namespace).of(name)
        assert found is not None
        self.definition = found
        return name

    def export(self, topic: str) -> Exported | None:
        return self.exporter.export(topic_of(topic), self.definition)

    def table(self, topic: str) -> LakeTable:
        found = find_table(topic_of(topic), self.definition)
        assert found is not None
        return found

    def rows(self, topic: str) -> list[Mapping[str, Any]]:
        rows = self.table(topic).table.scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def places(self, topic: str) -> list[tuple[int, int]]:
        return [(row["partition"], row["offset"]) for row in self.rows(topic)]

"""What all sources share: an outlet with their positions, and a topic that has its schema."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from weir.client.registry import TopicSchema, kafka_name
from weir.connect.outlet import Outlet, ensure_topic, positions_topic
from weir.connect.task import Job, Message, Status
from weir.connect.values import Encoder, Row, key_of, latest_schema, record_of, register


def now_ms() -> int:
    return int(time.time() * 1000)


class Source:
    """Positions are loaded by `open`; `send` writes messages and the positions behind them, exactly once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.status = Status()
        self.outlet = Outlet(job.place.kafka, f"weir-connect-{job.id}", kafka_name(positions_topic(job)))
        self.positions: dict[str, Any] = {}

    def open(self) -> None:
        self.positions = self.outlet.open()

    def interrupt(self) -> None:
        """Steps are short."""

    def close(self) -> None:
        self.outlet.close()

    def send(self, messages: Sequence[Message], positions: Mapping[str, Any]) -> None:
        self.outlet.write(messages, positions)
        for key, at in positions.items():
            if at is None:
                self.positions.pop(key, None)
            else:
                self.positions[key] = at


class RowSource(Source):
    """One whose records are rows: they are written by the schema of the topic, which it may register."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.topic = job.definition.topic
        self.name = kafka_name(self.topic)
        self._encoder: Encoder | None = None

    def open(self) -> None:
        ensure_topic(self.outlet.cluster, self.name, self.job.definition.partitions)
        super().open()
        self._encoder = None

    def schema(self) -> TopicSchema | None:
        """The one that rows are written by."""
        versions = latest_schema(self.job.place.access, self.topic)
        return versions[-1] if versions else None

    def declare(self, columns: Sequence[tuple[str, Any]]) -> None:
        """What the rows are: the topic gets a schema of these columns, and columns that are new to one that has
        been made so. A schema that says something else of them is left as it is."""
        definition = _grown(self.schema(), record_of(self.topic.local, columns), self.job.option("values"))
        if definition is not None:
            register(self.job.place.access, self.topic, self.job.option("values"), definition)
        self._encoder = None

    def message(self, row: Row, key: Sequence[str], keyed: Row | None = None) -> Message:
        """`keyed`: what has the columns of the key, if the row has not."""
        return message_by(self.encoder(), self.name, row, key, keyed)

    def encoder(self) -> Encoder:
        if self._encoder is None:
            self._encoder = Encoder(self.schema(), self.topic)
        return self._encoder


def message_by(encoder: Encoder, topic: str, row: Row, key: Sequence[str], keyed: Row | None = None) -> Message:
    found = key_of(row if keyed is None else keyed, key)
    return Message(topic, found, encoder.encode(row), now_ms(), encoder.headers)


def _grown(now: TopicSchema | None, wanted: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The schema that the topic should have; None if the one that it has will do."""
    if now is None:
        return wanted
    if now.kind != kind.upper():
        return None
    has = json.loads(now.definition)
    mine = {field["name"]: field for field in wanted["fields"]}
    theirs = {field["name"]: field for field in has.get("fields", ())} if isinstance(has, dict) else {}
    new = [field for name, field in mine.items() if name not in theirs]
    alike = theirs and all(theirs[name].get("type") == mine[name]["type"] for name in mine if name in theirs)
    return {**has, "fields": [*has["fields"], *new]} if new and alike else None

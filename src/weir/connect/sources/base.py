"""What all sources share: an outlet with their positions, and a topic that has its schema."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from weir.connect.outlet import Outlet, ensure_topic
from weir.connect.place import kafka_name
from weir.connect.task import Job, Message, Status
from weir.connect.values import Encoder, Row, key_of, latest_schema, register
from weir.model.topics import TopicName


def positions_topic(job: Job) -> TopicName:
    """Where its positions are kept."""
    return TopicName.parse(f"{job.definition.name.namespace}/connect-{job.definition.name.local}-positions")


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

    def known(self) -> bool:
        """Whether the topic has a schema."""
        return bool(latest_schema(self.job.place.access, self.topic))

    def declare(self, definition: Mapping[str, Any]) -> None:
        """What the rows are. Asking for what the topic has is fine."""
        register(self.job.place.access, self.topic, self.job.option("values"), definition)
        self._encoder = None

    def message(self, row: Row, key: Sequence[str]) -> Message:
        if self._encoder is None:
            versions = latest_schema(self.job.place.access, self.topic)
            self._encoder = Encoder(versions[-1] if versions else None, self.topic)
        encoder = self._encoder
        return Message(self.name, key_of(row, key), encoder.encode(row), now_ms(), encoder.headers)

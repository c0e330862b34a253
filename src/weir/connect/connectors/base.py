"""What all sinks share: topics read from the group's position on, values as rows, and dead letters.

What all sources share: an outlet with their positions, and a topic that has its schema.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.client.kafka.produce import Sender
from weir.client.schemas import TopicSchema, kafka_name
from weir.connect.reader import Inlet, Piece
from weir.connect.task import Job, Message, Status
from weir.connect.values import Decoder, Encoder, Row, key_of, latest_schema, record_of, register
from weir.connect.writer import TOPIC_ID, Outlet, chunks, ensure_topic, positions_topic
from weir.model.topics import TopicName
from weir.wire.kafka.records import Record, build_batch

_LONGEST_REASON = 500


class Sink:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.status = Status()
        self.inlet = Inlet(job)
        self._decoders: dict[str, Decoder] = {}
        self._names = {kafka_name(topic): topic for topic in job.definition.topics}

    def open(self) -> None:
        self._decoders.clear()
        kept = self.kept()
        ids = self.kept_ids()
        begun = self._note([])
        self.inlet.open(kept, ids, begun)
        if begun != self.inlet.ids:
            self._note(list(self.inlet.ids))
        new = {topic: found for topic, found in self.inlet.ids.items() if found and topic not in ids}
        if new:
            self.keep_ids(new)

    def kept(self) -> dict[Partition, int]:
        """Positions that the other system has, where it does; they go before those of the group."""
        return {}

    def kept_ids(self) -> dict[str, str]:
        """Which topics those are. Where the other system has no positions, the group alone has them, and goes with
        its topic."""
        return {}

    def keep_ids(self, ids: Mapping[str, str]) -> None:
        """Of topics that nothing is known of yet."""

    def _note(self, topics: Sequence[str]) -> dict[str, str]:
        """Note that the sink has begun to read these topics; answers those that were noted before, with their ids.
        A sink that begins at the end needs that: a topic that was created again is not begun at its end."""
        if self.job.option("start") != "latest":
            return {}
        name = f"weir-connect-{self.job.id}-begun"
        outlet = Outlet(self.job.place.kafka, name, kafka_name(positions_topic(self.job)))
        try:
            found = {key.removeprefix(TOPIC_ID): str(said) for key, said in outlet.open().items()}
            outlet.write([], {f"{TOPIC_ID}{topic}": self.inlet.ids[topic] for topic in topics})
            return found
        finally:
            outlet.close()

    def interrupt(self) -> None:
        """Steps are short."""

    def close(self) -> None:
        self.inlet.close()

    def take(self, most: int | None = None) -> Piece | None:
        """Up to so many messages of a partition, if there are any now."""
        found = self.inlet.take(most)
        self.status.lag = self.inlet.lag()
        return found

    def done(self, piece: Piece) -> None:
        """The piece is in the other system."""
        self.inlet.advance(piece)
        self.inlet.commit({piece.partition: piece.next_offset})
        self.status.position = f"{piece.partition} at {piece.next_offset}"
        self.status.lag = self.inlet.lag()

    def decoder(self, topic: str) -> Decoder:
        """By the schemas that the topic has when it is first asked for; it looks again for what is new to it, and
        after `forget_schemas`."""
        if topic not in self._decoders:
            name = self._names[topic]

            def versions() -> Sequence[TopicSchema]:
                return latest_schema(self.job.place.access, name)

            self._decoders[topic] = Decoder(versions(), str(name), versions)
        return self._decoders[topic]

    def forget_schemas(self) -> None:
        self._decoders.clear()

    @property
    def keeps_dead_letters(self) -> bool:
        return bool(self.job.option("on_error") == "dead_letter")

    def bury(self, letters: Sequence[tuple[int, Message, str]]) -> None:
        """Write messages as they are into the topic of dead letters, with where they were and why."""
        if not letters:
            return
        name = self.job.definition.name
        local = self.job.option("dead_letter_topic") or f"{name.local}-DLQ"
        topic = kafka_name(TopicName.parse(local if "/" in local else f"{name.namespace}/{local}"))
        cluster = self.inlet.cluster
        ensure_topic(cluster, topic, 1)
        told = []
        for offset, one, why in letters:
            about = {
                "weir-dead-letter-topic": one.topic,
                "weir-dead-letter-partition": str(one.partition),
                "weir-dead-letter-offset": str(offset),
                "weir-dead-letter-reason": why[:_LONGEST_REASON],
            }
            headers = (*one.headers, *((key.encode(), value.encode()) for key, value in about.items()))
            told.append(replace(one, headers=headers))
        sender = Sender(cluster)
        for part in chunks(told):
            records = [Record(at, one.timestamp, one.key, one.value, one.headers) for at, one in enumerate(part)]
            sender.send({Partition(topic, 0): build_batch(records)})
        sender.flush()
        self.status.dead_letters += len(letters)


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

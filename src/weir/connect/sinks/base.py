"""What all sinks share: topics read from the group's position on, values as rows, and dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weir.client.kafka.cluster import Partition
from weir.client.kafka.producing import Sender
from weir.client.registry import TopicSchema, kafka_name
from weir.connect.inlet import Inlet, Piece
from weir.connect.outlet import TOPIC_ID, Outlet, chunks, ensure_topic, positions_topic
from weir.connect.task import Job, Message, Status
from weir.connect.values import Decoder, latest_schema
from weir.model.topics import TopicName
from weir.wire.kafka.records_build import Record, build_batch

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

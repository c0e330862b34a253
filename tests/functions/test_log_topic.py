"""The topic of what a function says: all of it while it can be stored, and what was left out once it can again."""

import threading
from collections.abc import Sequence

import pytest

from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import KafkaSettings
from weir.functions import output
from weir.functions.executor_protocol import LogLine
from weir.functions.output import LogTopic
from weir.functions.subscriptions import Place
from weir.model.definitions import Function
from weir.model.errors import TopicNotFoundError
from weir.model.topics import TopicName

from .conftest import Bench

FUNCTION = Function(TopicName.parse("f"), "1", 1, "", "f.py", "f", ())


def lines(count: int, text: str = "") -> list[LogLine]:
    return [LogLine(1000, "INFO", "stdout", f"{at}{text}") for at in range(count)]


@pytest.mark.process
def test_whoever_says_more_than_can_be_sent_waits_and_no_line_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PATIENCE_S", 120.0)  # on whatever machine
    topic = f"{bench.name()}-logs"
    said = LogTopic(Place.find(bench.access).kafka, FUNCTION, topic)
    said.say(lines(3_000))
    said.say(lines(600, "é" * 10_000))  # more than a batch may have
    said.close()
    assert len(bench.read(topic, 3_600, more=True)) == 3_600


def test_lines_that_cannot_be_stored_hold_nobody_up_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    was_refused = threading.Event()

    def send(self: LogTopic, cluster: Cluster, some: Sequence[LogLine]) -> None:
        if not was_refused.is_set():
            was_refused.set()
            raise TopicNotFoundError("there is no topic")
        sent.extend(line.text for line in some)

    monkeypatch.setattr(LogTopic, "_send", send)
    monkeypatch.setattr(output, "_LINES", 10)
    monkeypatch.setattr(output, "_PATIENCE_S", 120.0)
    said = LogTopic(KafkaSettings(servers=()), FUNCTION, "logs")
    said.say(lines(1))
    was_refused.wait(60)
    said.say(lines(10))
    said.close()
    told = [text for text in sent if "left out" in text]
    assert told == ["1 lines are left out: they could not be stored"]
    assert [text for text in sent if text not in told] == [str(at) for at in range(10)]

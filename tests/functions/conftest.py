"""One `weir up` for all of these tests; every test has topics and functions of its own."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from weir.client import functions as rest
from weir.client.admin import Access
from weir.client.functions import Definition
from weir.functions.options import from_text
from weir.functions.subscriptions import Place, subscribe
from weir.functions.worker import Work
from weir.model.definitions import Function
from weir.model.topics import TopicName
from weir.testing.processes.up import UpProcess

_NAMES = count()
_PATIENCE_S = 60.0
_READ_S = 240.0


class Bench:
    """Deploys functions, and produces and reads with Kafka's own client."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        self.access = Access(up.http_url)
        self._producer = Producer({"bootstrap.servers": up.kafka, "log_level": 0})
        self._works: list[Work] = []
        self._deployed: list[Function] = []

    def name(self) -> str:
        return f"t{next(_NAMES)}"

    def deploy(self, code: str, *, entry: str = "f", inputs: int = 1, **options: str) -> Function:
        """A function of topics of its own: NAME-in, or NAME-in0 and so on, and NAME-out."""
        name = self.name()
        topics = [f"{name}-in{at or ''}" for at in range(inputs)]
        function = rest.deploy(self.access, TopicName.parse(name), _definition(code, entry, topics, name, options))
        subscribe(self.access, function.function)
        self._deployed.append(function.function)
        return function.function

    def update(self, function: Function, code: str, **options: str) -> Function:
        names = [topic.local for topic in function.inputs]
        what = _definition(code, function.entry, names, function.name.local, options)
        return rest.update(self.access, function.name, what).function

    def work(self, function: Function, *, open_it: bool = True) -> Work:
        """Its worker's loop, in this process."""
        place = Place.find(self.access)
        work = Work(place, function, from_text(function.options), lambda: False)
        self._works.append(work)
        if open_it:
            work.open()
        return work

    def produce(self, topic: str | TopicName, values: Sequence[bytes | str], *, key: str | None = None) -> None:
        name = topic if isinstance(topic, str) else topic.local
        for value in values:
            self._producer.produce(name, value, key=key)
        assert self._producer.flush(_PATIENCE_S) == 0

    def read(
        self, topic: str, many: int, *, step: Callable[[], Any] | None = None, more: bool = False
    ) -> list[Any]:
        """So many committed messages from the beginning; `step` is done while they are waited for. `more`: and
        what there is behind them."""
        deadline = time.monotonic() + _READ_S
        consumer = Consumer(
            {
                "bootstrap.servers": self.up.kafka,
                "group.id": self.name(),
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": True,
                "topic.metadata.refresh.interval.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        try:
            while len(found) < many or more:
                assert time.monotonic() < deadline, f"{len(found)} of {many} messages came to {topic}"
                if step is not None:
                    step()
                message = consumer.poll(0.02 if step is not None else 1.0)
                if message is not None and message.error() is None:
                    found.append(message)
                elif more and len(found) >= many:
                    break
        finally:
            consumer.close()
        return found

    def close(self) -> None:
        for work in self._works:
            work.close()
        self._works = []
        for function in list(self._deployed):  # or a runner of another test would run them
            self.delete(function)

    def delete(self, function: Function) -> None:
        rest.delete(self.access, function.name)
        self._deployed.remove(function)


def _definition(code: str, entry: str, inputs: Sequence[str], name: str, options: Mapping[str, str]) -> Definition:
    topics = tuple(TopicName.parse(one) for one in inputs)
    return Definition(code, "f.py", entry, topics, TopicName.parse(f"{name}-out"), dict(options))


@pytest.fixture(scope="session")
def functions_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    folder: Path = tmp_path_factory.mktemp("functions-up")
    up = UpProcess(folder)
    up.start()
    yield up
    up.close()
    rmtree(folder, ignore_errors=True)


@pytest.fixture
def bench(functions_up: UpProcess) -> Iterator[Bench]:
    made = Bench(functions_up)
    yield made
    made.close()

"""The last part of the tour: orders by Pulsar's client, payments by Kafka's, joined and summed by streaming SQL.

What is told here is checked: the totals that both clients read back are compared, exactly, with what was sent.
"""

import asyncio
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from weir.cli.spark_session import quiet_session
from weir.client.admin import Access, ask_v2
from weir.model.errors import WeirError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.sql.console import Console

_SECONDS = 5
_PER_SECOND = 200
_PRODUCTS = ("boots", "gloves", "hats", "scarves")
#: How long there may be nothing new: on one core of a busy machine, the first batch takes minutes. What fails ends
#: the wait at once.
_PATIENCE_S = 300.0
#: Files of the tour's folder that are kept if it fails.
SPARK_LOG, WEIR_LOG = "spark.log", "weir.log"
_NEEDED = ("pulsar", "confluent_kafka", "pyspark", "sqlglot")
PAYMENT = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "order_id", "type": "int"}, {"name": "cents", "type": "long"}],
}
JOIN = """
CREATE STREAM sales AS
SELECT o.product AS key, o.product AS product, o.id AS id, p.cents AS cents
FROM orders WATERMARK __timestamp DELAY OF INTERVAL 1 MINUTE o
JOIN payments WATERMARK __timestamp DELAY OF INTERVAL 1 MINUTE p
  ON o.id = p.order_id
  AND p.__timestamp BETWEEN o.__timestamp - INTERVAL 1 MINUTE AND o.__timestamp + INTERVAL 1 MINUTE
"""
SUM = """
CREATE STREAM revenue AS
SELECT product AS key, count(*) AS sold, sum(cents) AS cents FROM sales GROUP BY product
"""

#: Told of each step and what came of it.
Did = Callable[[str, str], None]
#: How many were sold, and for how much, by product.
Totals = dict[str, tuple[int, int]]


def missing() -> list[str]:
    """What is not installed of all that this part needs."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


@dataclass(slots=True)
class Sent:
    """What was produced: totals by product, and when each message was sent."""

    totals: Totals = field(default_factory=dict)
    moments: list[float] = field(default_factory=list)

    def add(self, product: str, cents: int) -> None:
        sold, sum_ = self.totals.get(product, (0, 0))
        self.totals[product] = (sold + 1, sum_ + cents)
        self.moments.append(time.monotonic())


class SparkStarter:
    """Starts Spark beside the rest of the tour: it takes some seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spark: SparkSession | None = None
        self._failure: Exception | None = None
        self._thread = Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        # A group-by of four products needs no more than one task, and two cores have enough to do.
        config = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"}
        self._folder.mkdir()
        config["spark.sql.warehouse.dir"] = str(self._folder / "warehouse")  # else it stays in the current folder
        try:
            self._spark = quiet_session(
                "weir-demo", master="local[2]", config=config, into=self._folder / SPARK_LOG
            )
        except Exception as failure:  # told where it is waited for
            self._failure = failure

    def get(self) -> "SparkSession":
        self._thread.join()
        if self._spark is None:
            raise WeirError(f"Spark did not start: {self._failure}", hint="weir doctor says what is missing")
        return self._spark

    def stop(self) -> None:
        self._thread.join()
        if self._spark is not None:
            self._spark.stop()


async def sql_tour(folder: str, starter: SparkStarter, did: Did, plot: Path) -> None:
    """Run a Weir, and all of the story in a thread, since Spark and the clients block."""
    await asyncio.get_running_loop().run_in_executor(None, _tour, folder, starter, did, plot)


def _tour(folder: str, starter: SparkStarter, did: Did, plot: Path) -> None:
    with weir_up(Path(folder)) as up:
        _Story(up, folder, did).tell(starter, plot)


@dataclass(frozen=True, slots=True)
class Up:
    """A `weir up`: its process, where it listens, and its log."""

    process: "subprocess.Popen[bytes]"
    addresses: Mapping[str, str]
    log: Path

    def check(self) -> None:
        if self.process.poll() is not None:
            raise WeirError(f"weir up has ended with code {self.process.returncode}: {_end_of(self.log)}")


@contextmanager
def weir_up(folder: Path) -> Iterator[Up]:
    """`weir up` as everybody starts it, on ports of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "weir.cli.main", "up", "--data", str(folder / "weir")]
    command += ["--ready-file", str(ready)]
    for name in ("pulsar", "kafka", "amqp", "rocketmq", "http"):
        command += ["--set", f"listeners.{name}=127.0.0.1:0"]
    log_file = folder / WEIR_LOG
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise WeirError(f"weir up did not start: {_end_of(log_file)}")
            time.sleep(0.05)
        yield Up(process, json.loads(ready.read_text()), log_file)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-500:]


class Steps(Protocol):
    """What a `Worker` needs of the runner of streams."""

    @property
    def failures(self) -> Mapping[str, str]: ...

    def step(self) -> bool: ...

    def close(self) -> None: ...


class Worker:
    """Runs the streams in a thread, until the first failure."""

    def __init__(self, runner: Steps, check_broker: Callable[[], None]) -> None:
        self._runner = runner
        self._check_broker = check_broker
        self._done = Event()
        #: Why the streams do not run any more.
        self._failure = ""
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """WeirError with the cause if a stream has failed, or the broker has ended."""
        self._check_broker()
        if self._failure:
            raise WeirError(self._failure)

    def stop(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._failure and not self._done.wait(0.3):
                self._runner.step()
                self._failure = self._failed_streams()
        except Exception as failure:  # raised by `check`
            self._failure = self._failed_streams() or f"the streams do not run: {failure}"
        finally:
            self._runner.close()

    def _failed_streams(self) -> str:
        return "; ".join(f"stream {name} failed: {cause}" for name, cause in self._runner.failures.items())


class _Story:
    def __init__(self, up: Up, folder: str, did: Did) -> None:
        self._up, addresses = up, up.addresses
        self._pulsar_url = f"pulsar://{addresses['pulsar']}"
        self._kafka = addresses["kafka"]
        self._access = Access(f"http://{addresses['http']}")
        self._folder = folder
        self._did = did

    def tell(self, starter: SparkStarter, plot: Path) -> None:
        spark = starter.get()
        self._did("spark", f"{spark.version} in this process, with every topic as a table")
        from weir.spark.sql.console import Console
        from weir.spark.sql.runner import Runner
        from weir.spark.tables.names import WeirCluster

        place = WeirCluster(self._access, self._kafka)
        console = Console(lambda: spark, place)
        worker = Worker(Runner(spark, place, f"{self._folder}/checkpoints"), self._up.check)
        try:
            self._tell(console, worker, plot)
        finally:
            worker.stop()

    def _tell(self, console: "Console", worker: "Worker", plot: Path) -> None:
        with _Producers(self._pulsar_url, self._kafka) as producers:
            self._register_payments()
            for statement in (JOIN, SUM):
                _do(console, statement)
            worker.start()
            self._did("streams", "orders JOIN payments -> topic sales; sales GROUP BY product -> topic revenue")
            sent = producers.send(worker.check)
        count = len(sent.moments)
        self._did("produce", f"{count} orders by Pulsar's client and {count} payments by Kafka's, in {_SECONDS} s")
        by_kafka = _until(sent.totals, _ByKafka(self._kafka, "revenue").totals, worker.check)
        self._did("kafka", f"its client has read topic revenue: {_money(by_kafka)} in all, exactly what was paid")
        by_pulsar = _ByPulsar(self._pulsar_url, "revenue").totals()
        if by_pulsar != sent.totals:
            raise WeirError(f"Pulsar's client read {by_pulsar}, and {sent.totals} was sent")
        self._did("pulsar", "its client has read the same topic, and the same totals")
        self._query(console, sent)
        self._did("plot", _draw(plot, sent))

    def _query(self, console: "Console", sent: Sent) -> None:
        """What is stored, asked once: every sale is there once."""
        from weir.spark.sql.parsing import parse
        from weir.spark.sql.results import Rows

        (statement,) = parse("SELECT count(*), count(DISTINCT id), sum(cents) FROM sales")
        found = console.do(statement)
        count, paid = len(sent.moments), sum(cents for _, cents in sent.totals.values())
        if not isinstance(found, Rows) or [tuple(row) for row in found.rows] != [(count, count, paid)]:
            raise WeirError(f"topic sales has {found}, and {count} orders were paid")
        self._did("query", f"SELECT on topic sales: {count} rows, each order once")

    def _register_payments(self) -> None:
        body = {"type": "JSON", "schema": json.dumps(PAYMENT), "properties": {}}
        ask_v2(self._access, "POST", "schemas/public/default/payments/schema", body)


class _Producers:
    """Pulsar's client with Avro records, Kafka's with JSON."""

    def __init__(self, pulsar_url: str, kafka: str) -> None:
        pulsar, schema = importlib.import_module("pulsar"), importlib.import_module("pulsar.schema")
        confluent = importlib.import_module("confluent_kafka")
        fields = {"id": schema.Integer(required=True), "product": schema.String(required=True)}
        self._order = type("Order", (schema.Record,), fields)
        self._client = pulsar.Client(pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self._orders = self._client.create_producer("orders", schema=schema.AvroSchema(self._order))
        self._payments = confluent.Producer({"bootstrap.servers": kafka, "linger.ms": 20, "log_level": 0})
        self._payments.list_topics("payments", 30)  # so that there is a table of that name
        self._failed: list[Any] = []
        self._ok = pulsar.Result.Ok

    def __enter__(self) -> "_Producers":
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def send(self, check: Callable[[], None]) -> Sent:
        """For some seconds, at a steady pace. `check`: raises if the rest of the story cannot succeed."""
        sent, began = Sent(), time.monotonic()
        for number in range(_SECONDS * _PER_SECOND):
            product, cents = _PRODUCTS[number * 7 % 10 % len(_PRODUCTS)], 100 + number * 37 % 900
            self._orders.send_async(self._order(id=number, product=product), self._acknowledged)
            value = json.dumps({"order_id": number, "cents": cents})
            self._payments.produce("payments", value, key=str(number), on_delivery=self._delivered)
            self._payments.poll(0)
            sent.add(product, cents)
            if number % _PER_SECOND == 0:
                check()
            ahead = began + (number + 1) / _PER_SECOND - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        self._orders.flush()
        left = self._payments.flush(60)
        if self._failed or left:
            raise WeirError(f"{len(self._failed) + left} messages were not taken: {self._failed[:1]}")
        return sent

    def _acknowledged(self, result: Any, _message_id: Any) -> None:
        if result != self._ok:
            self._failed.append(result)

    def _delivered(self, failure: Any, _message: Any) -> None:
        if failure is not None:
            self._failed.append(failure)


class _ByKafka:
    """The result topic as Kafka's client reads it; what it has read is kept between looks."""

    def __init__(self, kafka: str, topic: str) -> None:
        confluent = importlib.import_module("confluent_kafka")
        settings = {
            "bootstrap.servers": kafka,
            "group.id": "demo",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self._consumer = confluent.Consumer({**settings, "enable.auto.commit": False})
        self._consumer.subscribe([topic])
        self._found: Totals = {}

    def totals(self) -> Totals:
        """After another half second of reading."""
        message = self._consumer.poll(0.5)
        while message is not None:
            if message.error() is None:
                _take(self._found, message.key().decode(), message.value())
            message = self._consumer.poll(0.1)
        return self._found


class _ByPulsar:
    """The same as Pulsar's client reads it."""

    def __init__(self, url: str, topic: str) -> None:
        pulsar = importlib.import_module("pulsar")
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        place = pulsar.InitialPosition.Earliest
        self._consumer = self._client.subscribe(topic, "demo-pulsar", initial_position=place)
        self._timeout = pulsar.Timeout

    def totals(self) -> Totals:
        """All that is there."""
        found: Totals = {}
        while True:
            try:
                message = self._consumer.receive(3_000)
            except self._timeout:
                break
            _take(found, message.partition_key(), message.data())
        self._client.close()
        return found


def _take(found: Totals, product: str, value: bytes) -> None:
    """The last word on a product counts."""
    said = json.loads(value)
    found[product] = (said["sold"], said["cents"])


def _until(wanted: Totals, look: Callable[[], Totals], check: Callable[[], None]) -> Totals:
    """What is read, once it is what it should be. `check`: raises if it never will be."""
    deadline, last = time.monotonic() + _PATIENCE_S, Totals()
    while (found := dict(look())) != wanted:
        check()
        if found != last:
            deadline, last = time.monotonic() + _PATIENCE_S, found
        if time.monotonic() > deadline:
            raise WeirError(f"the totals are {found}, and should be {wanted}")
    return found


def _do(console: "Console", text: str) -> None:
    from weir.spark.sql.parsing import parse

    for statement in parse(text):
        console.do(statement)


def _money(totals: Totals) -> str:
    return f"{sum(cents for _, cents in totals.values()) / 100:,.2f}"


def _draw(plot: Path, sent: Sent) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        return f"left out: {sys.executable} -m pip install matplotlib to get one"
    with TemporaryDirectory(prefix="weir-demo-") as fonts:  # which it would otherwise keep in the home folder
        os.environ.setdefault("MPLCONFIGDIR", fonts)
        _draw_with(importlib.import_module("matplotlib"), plot, sent)
    return f"a picture of it is in {plot}"


def _draw_with(matplotlib: Any, plot: Path, sent: Sent) -> None:
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3))
    names = sorted(sent.totals)
    left.bar(names, [sent.totals[name][1] / 100 for name in names], color="#2a6f97")
    left.set_title("topic revenue: paid, by product")
    seconds = [moment - sent.moments[0] for moment in sent.moments]
    right.hist(seconds, bins=_SECONDS * 4, color="#a9d6e5")
    right.set_title("orders sent, each quarter of a second")
    right.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(plot, dpi=110)
    pyplot.close(figure)

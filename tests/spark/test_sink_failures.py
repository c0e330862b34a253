"""The sink when something fails between any two steps of an epoch: nothing is written twice, nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from weir.client.kafka.cluster import Partition, open_transactions
from weir.client.kafka.fetch import ends
from weir.spark.options import SinkOptions, parse_sink
from weir.spark.sink import StreamWriter, TaskWritten
from weir.spark.source.batch_reader import WeirSource

from .conftest import Reads, Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: The steps of an epoch, in their order; each is broken right after it is done, once.
STEPS = ("some rows sent", "all rows sent", "committed", "swept")


class Breaker:
    """Fails at one step, the first time that it is reached: a file remembers that it has."""

    def __init__(self, step: str, flag: str, how: str) -> None:
        self._step = step
        self._flag = flag
        self._how = how

    def at(self, step: str) -> None:
        if step == self._step and not os.path.exists(self._flag):
            with open(self._flag, "x"):
                pass
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"broken after: {step}")


class BreakingWriter(StreamWriter):
    def __init__(self, options: SinkOptions, breaker: Breaker) -> None:
        super().__init__(options)
        self._breaker = breaker

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        def breaking() -> Iterator[Any]:
            for batch in iterator:
                yield batch.slice(0, 1)
                self._breaker.at("some rows sent")
                yield batch.slice(1)

        written = super().write(breaking())
        self._breaker.at("all rows sent")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        self._breaker.at("swept")

    def _sweep(self, mine: Any) -> None:
        self._breaker.at("committed")
        super()._sweep(mine)


class BreakingSource(WeirSource):
    """The sink, and options that say where it breaks."""

    @classmethod
    def name(cls) -> str:
        return "weir_breaking"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        given = {name.lower(): value for name, value in self._given.items()}
        breaker = Breaker(given.pop("breakat"), given.pop("breakflag"), given.pop("breakhow"))
        return BreakingWriter(parse_sink(given), breaker)


@pytest.mark.parametrize(
    ("step", "how"),
    [(step, "raise") for step in STEPS] + [("some rows sent", "kill"), ("all rows sent", "kill")],
)
def test_an_epoch_that_breaks_at_any_step_is_written_once(
    spark: SparkSession, topics: Topics, read: Reads, tmp_path: Path, step: str, how: str
) -> None:
    spark.dataSource.register(BreakingSource)
    source, target = topics.create(2), topics.create(2)
    for part in range(2):
        topics.fill(source, [f"{part}-{number}" for number in range(50)], part)
    flag = tmp_path / "broken"

    def run() -> None:
        frame = (
            spark.readStream.format("weir")
            .options(**{"kafka.bootstrap.servers": topics.servers, "startingOffsets": "earliest"})
            .load(source)
        )
        query = (
            frame.select("key", "value")
            .writeStream.format("weir_breaking")
            .options(**{"kafka.bootstrap.servers": topics.servers, "topic": target})
            .options(breakAt=step, breakFlag=str(flag), breakHow=how)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    for _ in range(4):
        try:
            run()
        except StreamingQueryException:
            assert flag.exists()
        else:
            break
    assert flag.exists(), "the step was reached"
    expected = sorted(f"{part}-{number}" for part in range(2) for number in range(50))
    assert sorted(read.values(target)) == expected
    with topics.cluster() as cluster:
        assert open_transactions(cluster, "weir-sink/spark-") == []


_DRIVER = """
import sys
import weir.spark
servers, source, target, checkpoint = sys.argv[1:]
spark = weir.spark.session("driver", master="local[2]", config={"spark.driver.memory": "1g"})
frame = spark.readStream.format("weir").options(**{
    "kafka.bootstrap.servers": servers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}).load(source)
query = frame.select("key", "value").writeStream.format("weir").options(**{
    "kafka.bootstrap.servers": servers, "topic": target, "checkpointLocation": checkpoint}).start()
query.awaitTermination()
"""


@pytest.mark.longest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills_at", [(200,), pytest.param((1, 200, 400), marks=pytest.mark.soak)])
def test_a_driver_that_is_killed_writes_everything_once(
    spark: SparkSession, topics: Topics, read: Reads, tmp_path: Path, kills_at: tuple[int, ...]
) -> None:
    source, target = topics.create(1), topics.create(1)
    expected = [f"{number:04}" for number in range(600)]
    topics.fill(source, expected)
    command = [sys.executable, "-c", _DRIVER, topics.servers, source, target, str(tmp_path / "checkpoint")]
    place = Partition(target, 0)
    for goal in kills_at:  # it is killed as soon as it has come so far
        driver = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 250
            with topics.cluster() as cluster:
                while ends(cluster, [place])[place] < goal:
                    assert driver.poll() is None, "the driver runs"
                    assert time.monotonic() < deadline, "the stream gets on"
                    time.sleep(0.1)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    query = (
        spark.readStream.format("weir")
        .options(**{"kafka.bootstrap.servers": topics.servers, "startingOffsets": "earliest"})
        .load(source)
        .select("key", "value")
        .writeStream.format("weir")
        .options(**{"kafka.bootstrap.servers": topics.servers, "topic": target})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)
    assert sorted(read.values(target)) == expected

"""Ranges written by Spark's tasks, or by this process."""

from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import TypeVar

from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from weir.spark.lake.writing import WriteJob, Written, write_range
from weir.spark.source.ranges import Range

_LOOK_S = 0.25
A = TypeVar("A")
B = TypeVar("B")


class SparkJobs:
    """One task for each range, wherever the session's tasks run. `reached` travels there, and is told which step
    the first attempt of each has done; tests end the process there."""

    def __init__(self, spark: SparkSession, *, reached: Callable[[str], None] = lambda step: None) -> None:
        self._spark = spark
        self._reached = reached

    def run(self, job: WriteJob, ranges: Sequence[Range], done: Callable[[int], None]) -> Sequence[Written]:
        context = self._spark.sparkContext
        counted, shared, reached = context.accumulator(0), context.broadcast(job), self._reached

        def write(wanted: Range) -> Written:
            attempt = TaskContext.get()
            is_first = attempt is not None and attempt.attemptNumber() == 0
            found = write_range(shared.value, wanted, reached if is_first else lambda step: None)
            counted.add(wanted.size)
            return found

        watch = _Watch(counted, done)
        watch.start()
        try:
            context.setJobDescription(f"lake: {ranges[0].partition.topic}")
            return context.parallelize(list(ranges), len(ranges)).map(write).collect()
        finally:
            watch.close()
            shared.destroy()

    def map(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return self._spark.sparkContext.parallelize(list(items), len(items)).map(work).collect()


class _Watch(Thread):
    """Tells how much is written while the driver waits."""

    def __init__(self, counted: "Accumulator[int]", done: Callable[[int], None]) -> None:
        super().__init__(name="lake-progress", daemon=True)
        self._counted = counted
        self._done = done
        self._ended = Event()
        self._told = 0

    def run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def close(self) -> None:
        self._ended.set()
        self.join()
        self._look()

    def _look(self) -> None:
        now = self._counted.value
        if now > self._told:
            self._done(now - self._told)
            self._told = now


class LocalJobs:
    """In this process, one range after the other: for little."""

    def run(self, job: WriteJob, ranges: Sequence[Range], done: Callable[[int], None]) -> Sequence[Written]:
        found = []
        for wanted in ranges:
            found.append(write_range(job, wanted))
            done(wanted.size)
        return found

    def map(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return [work(one) for one in items]

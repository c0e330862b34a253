"""Runs of a pipeline: a Spark with Connect, which its declarative pipelines need, and one update after another.

What a running pipeline says of itself, in a file of its storage: for `status` and `stop`.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from weir.client.schemas import kafka_name
from weir.model.errors import ConfigError, RunnerBusyError, SparkSetupError, WeirError
from weir.spark.options import connection
from weir.spark.pipelines import graph as definitions
from weir.spark.pipelines import lineage as openlineage
from weir.spark.pipelines.graph import Definitions, here
from weir.spark.pipelines.resolution import Resolved, message_select, resolve, source_frame
from weir.spark.pipelines.spec import Sink, Source, Spec
from weir.spark.source_environment import settle_environment
from weir.spark.spark_session import prepare, settings
from weir.spark.sql.insert import written_columns
from weir.spark.sql.stream_query import make_topic, register_schema
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.topic_tables import Tables

_FILE, _LOCK = "run.json", "run.lock"
_STOP_S, _PAUSE_S = 30.0, 0.1
#: Of what Spark says, so many lines are kept.
_LINES = 20


@dataclass
class State:
    """Times are seconds since 1970."""

    pipeline: str = ""
    pid: int = 0
    #: starting, running, waiting, failed, stopped or done
    state: str = "stopped"
    since: float = 0.0
    updates: int = 0
    failures: int = 0
    last_update: float = 0.0
    last_seconds: float = 0.0
    error: str = ""
    said: list[str] = field(default_factory=list)
    #: Spark's own process; 0 as long as there is none.
    spark: int = 0

    def say(self, line: str) -> None:
        self.said = [*self.said, line][-_LINES:]


def read(storage: Path) -> State:
    """What was last said; `stopped`, whatever it was, if nobody runs any more."""
    found = State()
    with suppress(OSError, ValueError, TypeError):
        found = State(**json.loads((storage / _FILE).read_text(encoding="utf-8")))
    if found.state in ("starting", "running", "waiting") and not is_running(storage):
        found.state, found.error = "stopped", found.error or "it ended without a word"
    return found


def write(storage: Path, state: State) -> None:
    """As a whole, or not at all."""
    new = storage / f"{_FILE}.new"
    new.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    new.replace(storage / _FILE)


@contextmanager
def alone(storage: Path) -> Iterator[None]:
    """RunnerBusyError if the pipeline runs already, on this machine."""
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunnerBusyError(
                f"it runs already, as process {_holder(storage) or 'unknown'}", hint="weir pipeline stop ends it"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _holder(storage: Path) -> int:
    """The process that has the lock, by its own word; 0 in the moment before it says so. What it wrote of its run
    may be that of the run before."""
    with suppress(OSError, ValueError):
        return int((storage / _LOCK).read_text(encoding="utf-8"))
    return 0


def check_own(storage: Path, pipeline: str) -> None:
    """ConfigError if the storage is another pipeline's: flows of one name would go on from its checkpoints."""
    other = read(storage).pipeline
    if other not in ("", pipeline):
        raise ConfigError(
            f"{storage} is the storage of the pipeline {other}",
            hint=f"give each a storage of its own; if this one had that name, remove {storage / _FILE}",
        )


def is_running(storage: Path) -> bool:
    """Its runner holds a lock, which ends with it however it ends."""
    try:
        with (storage / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def end_orphan(storage: Path, pipeline: str) -> None:
    """Spark's process outlives a runner that was killed, and would go on beside that of the next one with the
    update that it is at. It is killed, and waited for; by who is `alone`."""
    pid = read(storage).spark
    while pid and _is_spark(pid, pipeline):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _is_spark(pid: int, pipeline: str) -> bool:
    """Whether the process is Spark's, and still this pipeline's: numbers are given again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        b"org.apache.spark.deploy.SparkSubmit" in words
        and f"spark.app.name={app_name(pipeline)}".encode() in words
    )


def app_name(pipeline: str) -> str:
    """What Spark calls the pipeline."""
    return f"weir-pipeline-{pipeline}"


def stop(storage: Path, patience_s: float = _STOP_S) -> bool:
    """Ask the runner to end, and wait for it; False if none runs."""
    if not is_running(storage):
        return False
    told, until = 0, time.monotonic() + patience_s
    while is_running(storage):
        pid = _holder(storage)
        if pid > 0 and pid != told:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        if time.monotonic() > until:
            raise RunnerBusyError(
                f"process {told} has not ended yet", hint="it ends after the update that it is at"
            )
        time.sleep(_PAUSE_S)
    return True


Say = Callable[[str], None]

_LONGEST_PAUSE_S = 60.0


@dataclass
class Connected:
    """A session of Spark Connect, and the Spark behind it, both in this process."""

    spark: SparkSession
    behind: SparkSession

    def when_dead(self, act: Callable[[], None]) -> None:
        """Done, in a thread, when Spark's own process has ended: Connect would ask it again for minutes."""
        process = _driver()

        def watch() -> None:
            process.wait()
            act()

        if process is not None:
            Thread(target=watch, daemon=True).start()

    def stop(self) -> None:
        self.spark.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        self.behind.stop()


def _driver() -> Any:
    """Spark's own process; None if another has started it."""
    return getattr(SparkContext._gateway, "proc", None)


def connect(spec: Spec, master: str, memory: str, state: State) -> Connected:
    """Tables of the pipeline's are in its storage, and are known there by a catalog that outlives the process."""
    prepare()
    try:
        from pyspark.sql.connect.session import SparkSession as Remote
    except ImportError as missing:
        raise SparkSetupError(f"pipelines run on Spark Connect, which lacks a part: {missing}") from None
    spec.storage.mkdir(parents=True, exist_ok=True)
    forget_unmade(spec.storage / "catalog")
    port = _free_port()
    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", uuid4().hex)
    config = settings(master) | {
        "spark.app.name": app_name(spec.name),
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(spec.storage / "tables"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={spec.storage / 'catalog'};create=true"
        ),
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
    }
    os.environ.setdefault("DERBY_HOME", str(spec.storage))
    config["spark.driver.extraJavaOptions"] += f" -Dderby.system.home={spec.storage}"
    conf = SparkConf(loadDefaults=True).setAll(list((config | dict(spec.spark)).items()))
    behind = SparkSession(SparkContext.getOrCreate(conf))
    settle_environment(behind, search=True)  # Connect's server starts the flows, several in the same moment
    state.spark = getattr(_driver(), "pid", 0)
    write(spec.storage, state)
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # so that functions of columns are those of Connect
    spark: Any = Remote.builder.remote(f"sc://localhost:{port}").create()
    return Connected(spark, behind)


def forget_unmade(catalog: Path) -> None:
    """Derby writes its properties last. A catalog without them knows nothing yet: who made it was killed, and
    Derby would refuse it for ever."""
    if catalog.is_dir() and not any(catalog.glob("service.properties*")):
        shutil.rmtree(catalog, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Runner:
    """Updates of one pipeline. Definitions are read and checked once, when it begins."""

    def __init__(self, spec: Spec, place: WeirCluster, spark: SparkSession, say: Say) -> None:
        self._spec = spec
        self._place = place
        self._spark = spark
        self._say = say
        self.found: Definitions = definitions.read(spec, spark)
        self.resolved: Resolved = resolve(spec, place, self.found)
        self._lineage = None
        if spec.openlineage is not None:
            self._lineage = openlineage.sender(spec.openlineage, spec.storage, lambda: connection(place.options))

    def update(self) -> None:
        """What there is now goes through; whatever Spark raises comes out."""
        run, ended, failed = uuid4(), "COMPLETE", None
        self._tell(run, "START")
        try:
            self._prepare_topics()
            self._update()
        except BaseException as failure:
            ended, failed = ("FAIL", why(failure)) if isinstance(failure, Exception) else ("ABORT", None)
            raise
        finally:
            self._tell(run, ended, failed)

    def _tell(self, run: Any, kind: str, why: str | None = None) -> None:
        """That events could not be told does not end the run."""
        if self._lineage is None:
            return
        try:
            self._lineage(
                openlineage.events(self._spec, self.resolved.graph, self._place.kafka, run=run, kind=kind, why=why)
            )
        except (WeirError, OSError) as failure:
            self._say(f"lineage: {failure}")

    def _prepare_topics(self) -> None:
        for name, sink in self._spec.sinks.items():
            make_topic(self._place, sink.topic, None)
            if name in self.resolved.to_register:
                register_schema(self._place.access, sink.topic, self.resolved.to_register[name])

    def _update(self) -> None:
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        spark: Any = self._spark
        graph = create_dataflow_graph(spark, None, None, {})
        self._register(SparkConnectGraphElementRegistry(spark, graph))
        storage = (self._spec.storage / "flows").resolve().as_uri()
        for result in start_run(spark, graph, [], False, [], False, storage):
            if "pipeline_event_result" in result:
                self._say(result["pipeline_event_result"].event.message)

    def _register(self, registry: Any) -> None:
        from pyspark.pipelines.flow import AutoCdcFlow, Flow
        from pyspark.pipelines.output import Sink as SparkSink
        from pyspark.pipelines.output import TemporaryView

        spec, at = self._spec, here()
        for source in spec.sources.values():
            registry.register_output(TemporaryView(name=source.name, comment=None, source_code_location=at))
            registry.register_flow(Flow(source.name, source.name, {}, at, self._reading(source)))
        for sink in spec.sinks.values():
            options = {**self._place.options, "topic": kafka_name(sink.topic)}
            registry.register_output(SparkSink(sink.name, None, at, "weir", options))
        for output in self.found.outputs:
            registry.register_output(output)
        for one in self.found.flows:
            if one.target in spec.sinks and one.make is not None:
                conf = one.flow.spark_conf if isinstance(one.flow, Flow) else {}
                make = self._writing(one.name, one.make, spec.sinks[one.target])
                registry.register_flow(Flow(one.name, one.target, conf, at, make))
            elif isinstance(one.flow, AutoCdcFlow):
                registry.register_auto_cdc_flow(one.flow)
            elif one.flow is not None:
                registry.register_flow(one.flow)
        for file, found in self.found.sql:
            text = ";\n".join(one.text for one in found if one.target not in spec.sinks)
            if text:
                registry.register_sql(text + ";", file)

    def _reading(self, source: Source) -> Callable[[], DataFrame]:
        """Made before it is asked for: then nobody may ask Spark for anything, such as what columns there are."""
        frame = source_frame(self._spark, self._place, source)
        return lambda: frame

    def _writing(self, flow: str, make: Callable[[], DataFrame], sink: Sink) -> Callable[[], DataFrame]:
        schema = self.resolved.written[flow]
        registered = Tables(lambda: self._spark, self._place).value_schema(sink.topic)

        def written() -> DataFrame:
            return message_select(make(), sink, schema, written_columns(schema, sink.topic, registered)[0])

        return written


def why(failure: BaseException) -> str:
    """What failed, in a line: the words of gRPC's own errors are not at their beginning."""
    details = getattr(failure, "details", None)
    said = str(details() if callable(details) else failure).strip() or type(failure).__name__
    return said.splitlines()[0]


def keep_running(runner: Runner, spec: Spec, state: State, *, every_s: float, once: bool, ended: Event) -> bool:
    """Update after update, until it is ended; one that fails is tried again, later each time. False if the only
    update failed."""
    while not ended.is_set():
        began = time.time()
        state.state = "running"
        write(spec.storage, state)
        try:
            runner.update()
        except Exception as failure:  # whatever Spark raised, it is what the user has to see
            state.failures += 1
            state.error = why(failure)
            state.say(f"failed: {state.error}")
        else:
            state.failures, state.error = 0, ""
            state.updates += 1
        state.last_update, state.last_seconds = began, time.time() - began
        if once:
            state.state = "failed" if state.failures else "done"
            write(spec.storage, state)
            return not state.failures
        state.state = "waiting"
        write(spec.storage, state)
        ended.wait(min(_LONGEST_PAUSE_S, every_s * 2 ** min(state.failures, 8)))
    state.state = "stopped"
    write(spec.storage, state)
    return True

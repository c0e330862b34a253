"""The environment map that all queries of a source share, and the process of a streaming source that is slow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from weir.spark.functions.query import FunctionSource
from weir.spark.source_environment import KEYS, SOURCES, environments, settle_environment

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def keys(variables: Any) -> list[str]:
    """In the order of the map's table."""
    iterator, found = variables.keySet().iterator(), []
    while iterator.hasNext():
        found.append(iterator.next())
    return found


def stream(spark: "SparkSession", topics: Topics, topic: str) -> Any:
    reader = spark.readStream.format("weir").option("startingOffsets", "earliest")
    return reader.option("kafka.bootstrap.servers", topics.servers).load(topic)


def run(frame: Any, folder: Path) -> "StreamingQuery":
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    found: StreamingQuery = query.trigger(availableNow=True).start()
    return found


def test_a_stream_that_is_loaded_has_completed_the_map_and_a_query_changes_nothing_in_it(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    frame = stream(spark, topics, topic)
    variables = list(environments(spark))
    assert variables
    before = [keys(one) for one in variables]
    assert all(set(KEYS) < set(one) for one in before)
    for one in variables:  # as a query would, in another order
        for key in reversed(KEYS):
            one.put(key, one.get(key))
    assert [keys(one) for one in variables] == before, "a put has changed the table"
    run(frame, tmp_path / "checkpoint").awaitTermination()
    assert [keys(one) for one in variables] == before, "Spark adds a variable that Weir does not know"
    assert settle_environment(spark)
    assert [keys(one) for one in environments(spark)] == before


def test_the_source_of_functions_has_the_whole_map_too(spark: "SparkSession", topics: Topics) -> None:
    spark.dataSource.register(FunctionSource)
    reader = spark.readStream.format(FunctionSource.name()).option("subscribe", topics.create())
    reader.option("kafka.bootstrap.servers", topics.servers).option("includeHeaders", "true").load()
    found = [set(keys(one)) for one in environments(spark)]
    assert len(found) == len(SOURCES)
    assert all(set(KEYS) < one for one in found)


_AT_ONCE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import weir.spark
from weir.spark.source_environment import environments

servers, topic, folder, how, count = *sys.argv[1:5], int(sys.argv[5])
config = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": folder + "/warehouse"}
spark = weir.spark.session("at-once", master="local[2]", config=config)
barrier = Barrier(count)

def loaded():
    reader = spark.readStream.format("weir").option("startingOffsets", "earliest")
    return reader.option("kafka.bootstrap.servers", servers).load(topic)

if how == "table":
    loaded().createOrReplaceTempView("topic_view")

def frame():
    return spark.readStream.table("topic_view") if how == "table" else loaded()

def run(number):
    writer = frame().writeStream.format("noop").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{folder}/{how}-{number}")
    barrier.wait()
    query = writer.start()
    query.awaitTermination()
    return sum(one.numInputRows for one in query.recentProgress)

with ThreadPoolExecutor(count) as pool:
    rows = list(pool.map(run, range(count)))
(variables,) = environments(spark)
iterator, entries = variables.keySet().iterator(), 0
while iterator.hasNext():
    iterator.next()
    entries += 1
print(json.dumps({"rows": rows, "size": variables.size(), "entries": entries}))
spark.stop()
"""


@pytest.mark.parametrize("how", ["load", "table"])
def test_queries_that_start_in_the_same_moment_in_a_fresh_jvm_leave_the_map_whole(
    topics: Topics, tmp_path: Path, how: str
) -> None:
    topic, count = topics.create(), 6
    topics.fill(topic, ["a", "b", "c"])
    found = program(tmp_path, _AT_ONCE, topics.servers, topic, str(tmp_path), how, str(count))
    assert found["rows"] == [3] * count
    assert found["size"] == found["entries"]


_CONNECT = """
import json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
import weir.spark
from weir.spark.pipelines.run import connect
from weir.spark.pipelines.spec import load
from weir.spark.pipelines.run import State
from weir.spark.source_environment import KEYS, environments

servers, topic, folder, count = *sys.argv[1:4], int(sys.argv[4])
file = Path(folder) / "weir-pipeline.toml"
file.write_text('name = "shop"')
connected = connect(load(file), "local[2]", "1g", State("shop", os.getpid(), "starting", time.time()))

def keys():
    (variables,) = environments(connected.behind)
    iterator, found = variables.keySet().iterator(), []
    while iterator.hasNext():
        found.append(iterator.next())
    assert len(found) == variables.size()
    return found

before, barrier = keys(), Barrier(count)

def run(number):
    reader = connected.spark.readStream.format("weir").option("startingOffsets", "earliest")
    writer = reader.option("kafka.bootstrap.servers", servers).load(topic).writeStream
    writer = writer.format("noop").trigger(availableNow=True)
    barrier.wait()
    query = writer.option("checkpointLocation", f"{folder}/checkpoint-{number}").start()
    query.awaitTermination()
    return sum(one.numInputRows for one in query.recentProgress)

with ThreadPoolExecutor(count) as pool:
    rows = list(pool.map(run, range(count)))
missing = sorted(set(KEYS) - set(before))
print(json.dumps({"rows": rows, "missing": missing, "same": keys() == before}), flush=True)
os._exit(0)
"""


def test_a_spark_connect_server_of_a_pipeline_has_the_whole_map_before_it_starts_a_query(
    topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    found = program(tmp_path, _CONNECT, topics.servers, topic, str(tmp_path), "3")
    assert found == {"rows": [3, 3, 3], "missing": [], "same": True}


_SLOW = """
import json, sys
import weir.spark

servers, topic, folder = sys.argv[1:4]
config = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": folder + "/warehouse"}
config["spark.python.unix.domain.socket.enabled"] = sys.argv[4]
spark = weir.spark.session("slow", master="local[2]", config=config)
reader = spark.readStream.format("weir").option("startingOffsets", "earliest")
frame = reader.option("kafka.bootstrap.servers", servers).load(topic)
query = frame.writeStream.format("noop").trigger(availableNow=True)
query = query.option("checkpointLocation", folder + "/checkpoint").start()
query.awaitTermination()
print(json.dumps({"rows": sum(one.numInputRows for one in query.recentProgress)}))
spark.stop()
"""
#: As a machine would that loads PySpark from a cold disk: Spark gives the process 10 s.
_SLOW_IMPORT = """
import sys, time
if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    time.sleep(15)
"""


@pytest.mark.parametrize("unix_sockets", ["true", "false"])
def test_a_source_process_that_takes_15_seconds_to_load_does_not_end_the_query(
    topics: Topics, tmp_path: Path, unix_sockets: str
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(_SLOW_IMPORT)
    found = program(
        tmp_path, _SLOW, topics.servers, topic, str(tmp_path), unix_sockets, path=os.pathsep.join([str(slow)])
    )
    assert found == {"rows": 3}


_DAMAGED = """
import json, sys
import weir.spark
from weir.spark.jvm_state import jvm_defect
from weir.spark.source_environment import environments
from weir.spark.sql.stream_query import told

servers, topic, folder = sys.argv[1:4]
config = {"spark.driver.memory": "1g", "spark.sql.warehouse.dir": folder + "/warehouse"}
spark = weir.spark.session("damaged", master="local[2]", config=config)
reader = spark.readStream.format("weir").option("startingOffsets", "earliest")
frame = reader.option("kafka.bootstrap.servers", servers).load(topic)
defects = [jvm_defect(spark, ValueError("division by zero"))]
for variables in environments(spark):  # as two threads do
    hidden = variables.getClass().getDeclaredField("underlying")
    hidden.setAccessible(True)
    (map_,) = [hidden.get(variables)]
    (size,) = [one for one in map_.getClass().getDeclaredFields() if one.getName().endswith("contentSize")]
    size.setAccessible(True)
    size.set(map_, map_.size() + 1)
writer = frame.writeStream.format("noop").trigger(availableNow=True)
query = writer.option("checkpointLocation", folder + "/checkpoint").start()
while query.isActive:
    pass
failure = query.exception()
defects.append(jvm_defect(spark, failure))
batch = spark.read.format("weir").option("kafka.bootstrap.servers", servers).load(topic)
try:
    batch.collect()
except Exception as refused:
    causes = [told(failure), told(refused)]
spark.sparkContext._jsc.sc().stop(0)
defects.append(jvm_defect(spark))
process = spark.sparkContext._gateway.proc
process.kill()
process.wait()
defects.append(jvm_defect(spark))
print(json.dumps({"defects": defects, "causes": causes}), flush=True)
import os
os._exit(0)
"""


_PLAIN = """
import json, sys
from pyspark.sql import SparkSession

servers, topic, folder, imported = *sys.argv[1:4], sys.argv[4] == "imported"
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.warehouse.dir", folder + "/warehouse").getOrCreate()
if imported:
    import weir.spark
reader = spark.readStream.format("weir").option("startingOffsets", "earliest")
frame = reader.option("kafka.bootstrap.servers", servers).load(topic)
query = frame.writeStream.format("noop").trigger(availableNow=True)
query = query.option("checkpointLocation", folder + "/checkpoint").start()
query.awaitTermination()
print(json.dumps({"rows": sum(one.numInputRows for one in query.recentProgress)}))
spark.stop()
"""


@pytest.mark.parametrize("imported", [True, False])
def test_a_users_own_session_is_protected_by_the_import_and_warned_without_it(
    topics: Topics, tmp_path: Path, imported: bool
) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    slow, said = tmp_path / "slow", list[str]()
    slow.mkdir()
    if imported:
        (slow / "sitecustomize.py").write_text(_SLOW_IMPORT)
    how = "imported" if imported else "not"
    found = program(tmp_path, _PLAIN, topics.servers, topic, str(tmp_path), how, path=str(slow), errors=said)
    assert found == {"rows": 3}
    assert ("add `import weir.spark`" in said[0]) is not imported


def test_a_jvm_that_can_run_no_query_any_more_is_known_with_the_root_cause(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    topics.fill(topic, ["a", "b", "c"])
    said: list[str] = []
    found = program(tmp_path, _DAMAGED, topics.servers, topic, str(tmp_path), errors=said)
    healthy, damaged, stopped, ended = found["defects"]
    assert healthy == ""
    assert "damaged" in damaged
    assert "stopped" in stopped
    assert "ended" in ended
    for cause in found["causes"]:
        assert "Illegal size" in cause, "the root cause, not only 'Task not serializable'"
    log = said[0].splitlines()
    failed = next(at for at, line in enumerate(log) if "terminated with error" in line)
    assert log[failed + 1].startswith("java.lang.IllegalStateException: Illegal size"), (
        "Spark's log begins with it"
    )


def program(folder: Path, text: str, *words: str, path: str = "", errors: list[str] | None = None) -> Any:
    """What a program of its own says, in JSON, in its last line. `errors`: takes its standard error."""
    file = folder / "program.py"
    file.write_text(text)
    paths = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(file), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    if errors is not None:
        errors.append(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])

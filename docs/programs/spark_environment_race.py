"""A data race in Spark 4.3: streaming queries of one Python data source write one map without a lock.

    python spark_environment_race.py queries 40     # starts of queries in fresh JVMs, four at once
    python spark_environment_race.py map 20000      # the map alone, written by two threads

Needs PySpark and a Java, and nothing of Weir. It writes the source `racing` as a module into a temporary folder,
so that Spark finds it as it finds any installed source. docs/internals/spark-defects.md explains what it prints.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

class Reader(DataSourceStreamReader):
    def initialOffset(self): return {"at": 0}
    def latestOffset(self): return {"at": 1}
    def partitions(self, start, end): return [InputPartition(0)]
    def read(self, partition): yield (1,)

class DefaultSource(DataSource):
    @classmethod
    def name(cls): return "racing"
    def schema(self): return "value int"
    def streamReader(self, schema): return Reader()
"""

#: Two threads that do with a Scala map what two queries do with the environment: four puts each.
MAP = """
import java.util.concurrent.atomic.AtomicInteger;
import scala.collection.mutable.HashMap;

public class Race {
    static final String[] KEYS =
        {"SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME"};
    static volatile HashMap<String, String> map;
    static final AtomicInteger begun = new AtomicInteger(), done = new AtomicInteger();

    static void put(int round) {
        begun.incrementAndGet();
        while (begun.get() < 2 * round) Thread.onSpinWait();
        for (String key : KEYS) map.put(key, "x");
        done.incrementAndGet();
        while (done.get() < 2 * round) Thread.onSpinWait();
    }

    static HashMap<String, String> fresh() {
        HashMap<String, String> found = new HashMap<>(4, 0.75);
        found.put("PYTHONPATH", "x");
        found.put("PYSPARK_PYTHON", "x");
        return found;
    }

    public static void main(String[] words) throws Exception {
        int rounds = Integer.parseInt(words[0]), wrong = 0;
        AtomicInteger allowed = new AtomicInteger();
        Thread other = new Thread(() -> {
            for (int round = 1; round <= rounds; round++) {
                while (allowed.get() < round) Thread.onSpinWait();
                put(round);
            }
        });
        other.start();
        for (int round = 1; round <= rounds; round++) {
            map = fresh();
            allowed.set(round);
            put(round);
            int entries = 0;
            for (var each = map.iterator(); each.hasNext(); each.next()) entries++;
            if (entries != map.size()) wrong++;
        }
        System.out.println(wrong + " of " + rounds + " maps have a size that is not the number of their entries");
    }
}
"""


def session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()


def environment(spark: Any) -> Any:
    """Spark's map for the source, as an object of Java."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return manager.lookupDataSource("racing").dataSourceCls().envVars()


def start_at_once(count: int) -> str:
    """Start queries in the same moment, in this JVM; what became of the map."""
    spark, barrier = session(), Barrier(count)
    frame = spark.readStream.format("racing").load()

    def start(_: int) -> Any:
        barrier.wait()
        return frame.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()

    with ThreadPoolExecutor(count) as pool:
        queries = list(pool.map(start, range(count)))
    failures = []
    for query in queries:
        while query.isActive and not query.recentProgress:
            query.awaitTermination(1)
        failures += [str(query.exception()).split("\n")[0]] if query.exception() else []
        query.stop()
    variables = environment(spark)
    iterator, entries = variables.keySet().iterator(), 0
    while iterator.hasNext():
        iterator.next()
        entries += 1
    spark.stop()
    return f"size {variables.size()}, entries {entries} {failures or ''}" if spark else ""


def repeat(times: int) -> None:
    damaged = 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyspark_racing.py").write_text(SOURCE)
        for number in range(times):
            done = subprocess.run(
                [sys.executable, __file__, "once"],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"PYTHONPATH": folder, "PYSPARK_PYTHON": sys.executable},
            )
            said = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
            damaged += "size 6, entries 6" not in said[0]
            print(f"JVM {number + 1}: {said[0]}")
    print(f"{damaged} of {times} JVMs have a damaged map, or none of the expected size")


def write_map(rounds: int) -> None:
    import pyspark

    (library,) = (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Race.java"
        file.write_text(MAP)
        subprocess.run(["java", "-cp", str(library), str(file), str(rounds)], check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["queries", times]:
            repeat(int(times))
        case ["map", rounds]:
            write_map(int(rounds))
        case ["once"]:
            print(start_at_once(4))
        case _:
            sys.exit(__doc__)

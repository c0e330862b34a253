"""One Spark driver of a benchmark, in a process of its own: `python bench/spark_job.py '{...}'`.

It runs with whichever PySpark is found first, so it imports nothing of Weir unless Weir is what is measured. Its
last line is one JSON object.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

Params = dict[str, Any]
Found = dict[str, float]

_CONFIG = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def _session(params: Params) -> Any:
    if params["format"] == "weir":
        import weir.spark

        return weir.spark.session("bench", master="local[2]", config=_CONFIG | params["config"])
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.appName("bench").master("local[2]").config("spark.jars", ",".join(params["jars"]))
    )
    for name, value in (_CONFIG | params["config"]).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _reader(spark: Any, params: Params, topic: str, *, stream: bool = False) -> Any:
    reader = (spark.readStream if stream else spark.read).format(params["format"])
    options = {"kafka.bootstrap.servers": params["url"], "subscribe": topic, "startingOffsets": "earliest"}
    return reader.options(**options).load()


def _timed(work: Any) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def batch(spark: Any, params: Params) -> Found:
    """Rows per second to nowhere, to another topic, to Parquet; each once to warm up, then the best of some."""
    rows, folder = params["rows"], Path(params["folder"])
    to_topic = {"kafka.bootstrap.servers": params["url"], "topic": "target"}

    def nowhere() -> None:
        _reader(spark, params, "rows").write.format("noop").mode("overwrite").save()

    def topic() -> None:
        frame = _reader(spark, params, "rows").select("key", "value")
        frame.write.format(params["format"]).options(**to_topic).mode("append").save()

    def parquet() -> None:
        _reader(spark, params, "rows").write.mode("overwrite").parquet(str(folder / "parquet"))

    found = {}
    for name, work in (("noop", nowhere), ("topic", topic), ("parquet", parquet)):
        work()
        found[f"{name}_s"] = rows / min(_timed(work) for _ in range(params["rounds"]))
    return found


def stream(spark: Any, params: Params) -> Found:
    """A stateless query from topic to topic, until whoever started this says that it is enough."""
    frame = _reader(spark, params, "live", stream=True).select("key", "value")
    query = (
        frame.writeStream.format(params["format"])
        .options(**{"kafka.bootstrap.servers": params["url"], "topic": "seen"})
        .option("checkpointLocation", params["folder"] + "/checkpoint")
        .start()
    )
    print("ready", flush=True)
    sys.stdin.readline()
    spans = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]]
    query.stop()
    found = {"batch_ms": _median([one["triggerExecution"] for one in spans])}
    parts = sorted({name for one in spans for name in one} - {"triggerExecution"})
    return found | {f"batch_{name}_ms": _median([one.get(name, 0) for one in spans]) for name in parts}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    session = _session(wanted)
    session.sparkContext.setLogLevel("ERROR")
    print(json.dumps((stream if wanted["job"] == "stream" else batch)(session, wanted)), flush=True)
    session.stop()

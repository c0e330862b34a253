"""A new pipeline: a folder with its file, and examples in Python and SQL."""

import re
from keyword import iskeyword
from pathlib import Path

from weir.model.errors import ConfigError
from weir.spark.pipelines.spec import FILE

_SPEC = """\
# A declarative pipeline of Spark's, with topics as sources and sinks: docs/how-to/pipelines.md
name = "{name}"
transformations = ["transformations/**"]     # files of Python and SQL
storage = "storage"                          # checkpoints, tables, what a run says of itself

[sources.{source}]           # a dataset of this name, made of a topic: in SQL, FROM STREAM {source}
topic = "{source_topic}"           # namespace/topic, or tenant/namespace/topic, elsewhere than in public/default

[sinks.{sink}]           # a topic that flows write: @dp.append_flow(target="{sink}"), or CREATE FLOW
topic = "{sink_topic}"
# key = "id"               # the column that is the messages' key

[lineage]
openlineage = "lineage.jsonl"   # a file, an http URL, or topic:NAME

[spark]
# "spark.sql.shuffle.partitions" = 4
"""

_PYTHON = '''\
"""Flows in Python. `spark` is there; datasets are read by their names."""

from pyspark import pipelines as dp
from pyspark.sql import functions as f


@dp.append_flow(target="{sink}")
def to_{sink}():
    """The messages of the topic {source_topic}, as they are. Columns are those of `weir sql`:
    the fields of the topic's schema, or `value`; and __key, __timestamp, __offset, __partition."""
    return spark.readStream.table("{source}").where(f.col("__offset") >= 0)
'''

_SQL = """\
-- Flows in SQL: a table of the pipeline's own, filled from the topic, and a view of it.
CREATE STREAMING TABLE {name}_log AS
SELECT __timestamp AS at, __partition AS part, __offset AS place FROM STREAM {source};

CREATE MATERIALIZED VIEW {name}_counts AS
SELECT part, count(*) AS messages FROM {name}_log GROUP BY part;
"""


def dataset_of(topic: str) -> str:
    """What a topic is called as a dataset: of its own name, what Python and SQL take for one."""
    plain = re.sub(r"\W", "_", topic.rpartition("/")[2])
    return plain if plain.isidentifier() and not iskeyword(plain) else f"t_{plain}"


def make(folder: Path, *, source: str, sink: str) -> list[Path]:
    """The files that were made, for a topic that is read and one that is written; ConfigError if the folder is
    there."""
    name, topics = folder.name, {"source_topic": source, "sink_topic": sink}
    source, sink = dataset_of(source), dataset_of(sink)
    if source == sink:
        raise ConfigError(f"{source} would be read and written", hint="name two topics: --source and --sink")
    if not name.replace("-", "_").isidentifier():
        raise ConfigError(f"{name!r} can be no pipeline", hint="write letters, digits, - and _")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is there, and not empty", hint="choose another name")
    files = {
        FILE: _SPEC.format(name=name, source=source, sink=sink, **topics),
        "transformations/flows.py": _PYTHON.format(source=source, sink=sink, **topics),
        "transformations/tables.sql": _SQL.format(name=name.replace("-", "_"), source=source),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in files]

"""What a pipeline is: its file `weir-pipeline.toml`, read and checked.

A new pipeline: a folder with its file, and examples in Python and SQL.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from keyword import iskeyword
from pathlib import Path
from typing import Any

from weir.model.errors import ConfigError, InvalidNameError, WeirError
from weir.model.topics import TopicName

FILE = "weir-pipeline.toml"
_TOP = ("name", "transformations", "storage", "sources", "sinks", "spark", "lineage")
_SOURCE = ("topic", "read", "start", "mode", "values")
_SINK = ("topic", "key")
_LINEAGE = ("openlineage", "namespace")
_READS, _STARTS, _VALUES = ("stream", "table"), ("earliest", "latest"), ("schema", "raw")
_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")


@dataclass(frozen=True, slots=True)
class Source:
    """A topic as a dataset: `read` as a stream, or as the table of what there is now."""

    name: str
    topic: TopicName
    read: str = "stream"
    start: str = "earliest"
    mode: str = "FAILFAST"
    #: `schema`: typed by the registry, where it has a schema; `raw`: key and value as they are.
    values: str = "schema"


@dataclass(frozen=True, slots=True)
class Sink:
    """A topic that flows write. `key`: the column that is the messages' key."""

    name: str
    topic: TopicName
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    folder: Path
    storage: Path
    transformations: tuple[str, ...]
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    #: Settings of Spark's.
    spark: Mapping[str, str]
    #: Where events of OpenLineage go: a file, a URL or `topic:NAME`; and the namespace of the pipeline's jobs.
    openlineage: str | None = None
    namespace: str = "weir"

    def files(self) -> list[Path]:
        """Those that define something, Python and SQL, in the order of their names."""
        found: dict[Path, None] = {}
        for pattern in self.transformations:
            wanted = f"{pattern}/*" if pattern.endswith("**") else pattern
            for path in sorted(self.folder.glob(wanted)):
                if path.suffix in (".py", ".sql") and path.is_file() and "__pycache__" not in path.parts:
                    found[path] = None
        if not found:
            raise ConfigError(
                f"{', '.join(self.transformations)} names no file of Python or SQL in {self.folder}",
                hint=f"see transformations in {FILE}",
            )
        return list(found)


def find(start: str) -> Path:
    """The pipeline's file: the one that was named, that of a folder, or of one above."""
    place = Path(start).resolve()
    if place.is_file():
        return place
    for folder in (place, *place.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    raise ConfigError(f"there is no {FILE} in {place}", hint="weir pipeline init NAME makes one")


def load(file: Path) -> Spec:
    """ConfigError says what is wrong in the file."""
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
        raise ConfigError(f"{file} cannot be read: {bad}") from None
    try:
        return _spec(given, file.parent)
    except WeirError as bad:
        raise ConfigError(f"{file.name}: {bad.what}", hint=bad.hint) from None


def _spec(given: Mapping[str, Any], folder: Path) -> Spec:
    _check_words(given, _TOP, "it")
    name = given.get("name")
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise ConfigError(f"the name is {name!r}", hint="write letters, digits, - and _")
    patterns = given.get("transformations", ["transformations/**"])
    if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
        raise ConfigError("transformations is no list of paths", hint='write ["transformations/**"]')
    lineage = _table(given, "lineage")
    _check_words(lineage, _LINEAGE, "[lineage]")
    sources = {key: _source(key, one) for key, one in _tables(given, "sources").items()}
    sinks = {key: _sink(key, one) for key, one in _tables(given, "sinks").items()}
    both = sorted(set(sources) & set(sinks))
    if both:
        raise ConfigError(
            f"{both[0]} is a source and a sink", hint="give one of them another name, with topic = ..."
        )
    return Spec(
        name=name,
        folder=folder,
        storage=folder / str(given.get("storage", "storage")),
        transformations=tuple(patterns),
        sources=sources,
        sinks=sinks,
        spark={key: str(value) for key, value in _table(given, "spark").items()},
        openlineage=lineage.get("openlineage"),
        namespace=str(lineage.get("namespace", "weir")),
    )


def _source(name: str, given: Mapping[str, Any]) -> Source:
    about = f"[sources.{name}]"
    _check_words(given, _SOURCE, about)
    return Source(
        name,
        _topic(given.get("topic", name), about),
        _one_of(given, "read", _READS, about),
        _one_of(given, "start", _STARTS, about),
        _one_of({**given, "mode": str(given.get("mode", _MODES[0])).upper()}, "mode", _MODES, about),
        _one_of(given, "values", _VALUES, about),
    )


def _sink(name: str, given: Mapping[str, Any]) -> Sink:
    _check_words(given, _SINK, f"[sinks.{name}]")
    key = given.get("key")
    return Sink(name, _topic(given.get("topic", name), f"[sinks.{name}]"), None if key is None else str(key))


def _topic(given: object, about: str) -> TopicName:
    """`orders`, `namespace/orders` or `tenant/namespace/orders`."""
    try:
        return TopicName.parse(str(given))
    except InvalidNameError as bad:
        raise ConfigError(f"{about}: {given!r} is no topic: {bad.what}", hint=bad.hint) from None


def _one_of(given: Mapping[str, Any], word: str, allowed: tuple[str, ...], about: str) -> str:
    found = str(given.get(word, allowed[0]))
    if found not in allowed:
        words = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise ConfigError(f"{about}: {word} is {found!r}", hint=f"write {words}")
    return found


def _tables(given: Mapping[str, Any], word: str) -> dict[str, Mapping[str, Any]]:
    found = _table(given, word)
    for name, one in found.items():
        if not isinstance(one, dict):
            raise ConfigError(f"{word}.{name} is no table", hint=f"write [{word}.{name}]")
        if not name.isidentifier():
            raise ConfigError(f"{name!r} can be no dataset", hint="write letters, digits and _, and topic = ...")
    return found


def _table(given: Mapping[str, Any], word: str) -> dict[str, Any]:
    found = given.get(word, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{word} is no table", hint=f"write [{word}]")
    return found


def _check_words(given: Mapping[str, Any], allowed: tuple[str, ...], about: str) -> None:
    for word in given:
        if word not in allowed:
            near = get_close_matches(word, allowed, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(allowed)}"
            raise ConfigError(f"{about} has {word}, which means nothing here", hint=hint)


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

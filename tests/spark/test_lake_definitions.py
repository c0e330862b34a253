"""What a process opens of the lake: catalogs of allowed kinds and options, and no class that a table names."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from weir.model.errors import LakeError
from weir.model.topics import NamespaceName, TopicName
from weir.spark.lake.catalog import Definition, NamespaceLake, _told_lake, open_catalog

NS = NamespaceName("acme", "orders")


def told(every: Any, **topics: Any) -> NamespaceLake:
    """As a server tells it."""
    plain = {"off": False, "name": "c", "options": {}, "keepMs": None, "tieredAfterMs": None, "problem": ""}
    said = {name: {**plain, **one} for name, one in topics.items()}
    return _told_lake({"namespace": str(NS), "owner": "a", "every": every and {**plain, **every}, "topics": said})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that were run."""
    run: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: run.append(words))
    return run


@pytest.mark.parametrize(
    "definition",
    [
        Definition("file:///tmp/x", "sqlite:////tmp/x.db", {"py-io-impl": "subprocess.Popen"}),
        Definition("file:///tmp/x", "sqlite:////tmp/x.db", {"py-catalog-impl": "subprocess.Popen"}),
        Definition("file:///tmp/x", "thrift://hive", {}),
        Definition("gs://tmp/x", "sqlite:////tmp/x.db", {}),
        Definition("s3://x", "http://c", {"s3.secret-access-key": "x"}),
        Definition("s3://x", "http://c", {"s3.endpoint": 5}),  # type: ignore[dict-item]
    ],
    ids=lambda one: one.text(),
)
def test_a_process_opens_no_catalog_with_other_options(definition: Definition, commands: list[Any]) -> None:
    with pytest.raises(LakeError, match="refused"):
        open_catalog(definition)
    assert not commands
    every = {"to": definition.to, "catalog": definition.catalog, "options": dict(definition.options)}
    found = told(every)
    topic = TopicName(NS, "t")
    assert found.every is None
    assert found.of(topic) is None
    assert found.problem(topic)
    with pytest.raises(LakeError, match="is ignored"):
        found.read(topic)


def test_a_definition_that_is_ignored_is_ignored_for_its_topics_alone() -> None:
    good = {"to": "s3://x", "catalog": "http://c"}
    bad = {"to": None, "catalog": None, "problem": "no such catalog"}
    found = told(bad, own=good, off={"off": True, **bad})
    own, off, other = (TopicName(NS, name) for name in ("own", "off", "other"))
    assert found.of(own) == Definition("s3://x", "http://c", owner="a")
    assert (found.of(off), found.problem(off)) == (None, None)
    assert (found.of(other), found.problem(other)) == (None, "no such catalog")
    found = told(good, own=bad)
    assert (found.of(own), found.problem(own)) == (None, "no such catalog")
    assert (found.of(other), found.problem(other)) == (found.every, None)


@pytest.mark.parametrize(
    "properties",
    [
        {"py-io-impl": "subprocess.Popen"},
        {"s3.retry-strategy-impl": "subprocess.Popen"},
        {"write.py-location-provider.impl": "subprocess.Popen"},
    ],
    ids=str,
)
def test_a_table_that_names_a_class_is_not_opened(
    tmp_path: Path, properties: dict[str, str], commands: list[Any]
) -> None:
    """Who may write to a catalog that several use must not run code where others read it."""
    catalog = open_catalog(Definition(f"file://{tmp_path}", f"sqlite:///{tmp_path}/catalog.db"))
    catalog.create_namespace(("ns",))
    schema = Schema(NestedField(1, "a", LongType(), required=False))
    found = catalog.create_table(("ns", "t"), schema)
    file = Path(found.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps({**metadata, "properties": properties}))
    with pytest.raises(LakeError, match="not pyiceberg's own"):
        catalog.load_table(("ns", "t")).location_provider()
    assert not commands

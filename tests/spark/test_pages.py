"""What README and the page of SQL show of Spark is understood by Spark and Weir as it stands."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from weir.client.admin import Access, ask_v2
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import parse_script
from weir.testing.pages import ROOT, Page

from .conftest import Topics
from .sql_session import Sql, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

TEXT = ["null", "string"]
ORDERS: dict[str, object] = {"id": "int", "customer": TEXT, "amount": "double"}
#: What the page speaks of, with the columns that it names.
TOPICS: dict[str, dict[str, object]] = {
    "orders": ORDERS,
    "old": ORDERS,
    "payments": {"order_id": "int", "cents": "int"},
}


def put_schema(topics: Topics, name: str, columns: dict[str, object]) -> None:
    fields = [{"name": column, "type": kind} | _default(kind) for column, kind in columns.items()]
    definition = json.dumps({"type": "record", "name": "Row", "fields": fields})
    body = {"type": "JSON", "schema": definition, "properties": {}}
    ask_v2(Access(topics.up.http_url), "POST", f"schemas/public/default/{name}/schema", body)


def _default(kind: object) -> dict[str, object]:
    return {"default": None} if isinstance(kind, list) else {}


def test_every_statement_of_the_page_is_understood(sql: Sql, spark: "SparkSession") -> None:
    for name, columns in TOPICS.items():
        sql.topics.create(name=name)
        put_schema(sql.topics, name, columns)
    blocks = [
        block.text for block in Page(ROOT / "docs" / "reference" / "sql.md").blocks() if block.language == "sql"
    ]
    assert len(blocks) == 3
    for text in blocks:
        if "product" in text:
            put_schema(sql.topics, "orders", {**ORDERS, "product": TEXT})
        console = Console(lambda: spark, sql.place, limit=1000, start="earliest")
        console.check([(f"statement {one.number}", one.statement) for one in parse_script(text)])


@pytest.mark.usefixtures("spark")
def test_the_snippet_of_readme_shows_a_topic(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [block.text for block in Page(ROOT / "README.md").blocks() if "weir.spark" in block.text]
    topics.fill(topics.create(name="of_readme"), ["hello", "world"])
    moved = snippet.replace("127.0.0.1:9092", topics.servers).replace('"orders"', '"of_readme"')
    exec(compile(moved, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "|     0|" in shown
    assert "world|" in shown


@pytest.mark.usefixtures("spark")
def test_the_program_that_writes_to_topics_runs_as_it_stands_and_again(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [
        block for block in Page(ROOT / "docs" / "reference" / "spark.md").blocks() if block.language == "python"
    ]
    (program,) = [block.text for block in blocks if "sink-large" in block.text]
    for name in ("sink-orders", "sink-large"):
        topics.create(name=name)
    moved = program.replace("localhost:9092", topics.servers).replace("/tmp/sink-large", str(tmp_path))
    for _ in range(2):
        exec(compile(moved, "spark.md", "exec"), {})
    shown = capsys.readouterr().out
    assert '{"id":3,"customer":"ann","amount":900.0}' in shown
    large = [json.loads(value)["id"] for _, value in stored(topics.servers, "sink-large")]
    assert sorted(large) == [1, 1, 3, 3], "each order that was written, once; tasks write beside each other"

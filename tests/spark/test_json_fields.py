"""JSON without a schema: fields are inferred from values, for `weir sql` and for conditions of replays."""

import json
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from weir.model.errors import SqlError
from weir.spark.tables.json_fields import infer_fields

from .conftest import Topics
from .sql_session import Sql, stored

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


def inferred(*values: Any, reserved: tuple[str, ...] = ()) -> str | None:
    found = infer_fields([json.dumps(value).encode() for value in values], reserved)
    return None if found is None else found.simpleString()


def test_the_type_of_a_field_fits_all_of_its_values() -> None:
    assert inferred({"a": 1, "b": 1.5, "c": "x", "d": True}) == "struct<a:bigint,b:double,c:string,d:boolean>"
    assert inferred({"a": 1}, {"a": 2.5}) == "struct<a:double>"
    assert inferred({"a": 1}, {"a": 2**63}) == "struct<a:decimal(38,0)>"
    assert inferred({"a": 10**40}) == "struct<a:double>"
    assert inferred({"a": 1}, {"a": "x"}) == inferred({"a": {"b": 1}}, {"a": [1]}) == "struct<a:string>"
    assert inferred({"a": None}) == inferred({"a": {}}) == "struct<a:string>"
    assert inferred({"a": None}, {"a": 1}, {"b": 2}) == "struct<a:bigint,b:bigint>"
    assert inferred({"a": [1, None, 2.5]}, {"a": []}) == "struct<a:array<double>>"
    assert inferred({"a": {"b": 1}}, {"a": {"c": [{"d": None}]}}) == (
        "struct<a:struct<b:bigint,c:array<struct<d:string>>>>"
    )


def test_names_are_taken_once_and_not_from_the_columns_of_a_message() -> None:
    assert inferred({"id": 1, "ID": 2, "value": 3, "Value": 4}, reserved=("value",)) == "struct<id:bigint>"
    assert inferred({"a": {"b": 1, "B": "x"}}) == "struct<a:struct<b:bigint>>"


def test_values_that_are_no_json_objects_have_no_fields() -> None:
    assert infer_fields([]) is None
    assert infer_fields([None]) is None
    assert inferred([1]) is None
    assert inferred({"a": 1}, 5) is None
    assert inferred({"value": 1}, reserved=("value",)) is None
    for text in (b"hello", b"\xff", b"{", b"[" * 100_000):
        assert infer_fields([b'{"a": 1}', text]) is None


def filled(topics: Topics, name: str) -> None:
    topics.create(2, name=name)
    orders = [{"id": n, "amount": n * 50, "customer": {"name": f"c{n % 2}"}} for n in range(6)]
    topics.fill(name, [json.dumps(one) for one in orders[:3]], 0)
    topics.fill(name, [json.dumps({**one, "note": "new"}) for one in orders[3:]], 1)


def test_queries_name_fields_of_json_without_a_schema(sql: Sql, topics: Topics) -> None:
    filled(topics, "json_orders")
    assert sql.rows("SELECT id, amount FROM json_orders WHERE amount > 100 ORDER BY id") == [
        (3, 150),
        (4, 200),
        (5, 250),
    ]
    assert sql.rows("SELECT customer.name, sum(amount) FROM json_orders GROUP BY 1 ORDER BY 1") == [
        ("c0", 300),
        ("c1", 450),
    ]
    assert sql.rows("SELECT o.id FROM json_orders o WHERE o.note = 'new' AND o.__partition = 1 LIMIT 1") == [(3,)]
    assert sorted(sql.rows("SELECT DISTINCT customer.name FROM json_orders")) == [("c0",), ("c1",)]
    # The text is there as before, and so are messages that are no JSON.
    assert len(sql.rows("SELECT value FROM json_orders WHERE get_json_object(value, '$.id') > 2")) == 3
    with pytest.raises((SqlError, AnalysisException), match="nothing_like_it"):
        sql.do("SELECT nothing_like_it FROM json_orders")


def test_rows_of_json_without_a_schema_can_be_inserted_and_replayed(sql: Sql, topics: Topics) -> None:
    filled(topics, "json_from")
    topics.create(name="json_to")
    topics.create(name="json_replayed")
    sql.do("INSERT INTO json_to SELECT CAST(amount AS string) AS value FROM json_from WHERE id = 4")
    assert [value for _, value in stored(topics.servers, "json_to")] == ["200"]
    sql.do("REPLAY json_from WHERE amount > 100 AND customer.name = 'c1' INTO TOPIC json_replayed")
    assert [json.loads(value)["id"] for _, value in stored(topics.servers, "json_replayed")] == [3, 5]


def test_a_stream_wants_a_schema_and_says_so(sql: Sql, topics: Topics) -> None:
    filled(topics, "json_streamed")
    with pytest.raises(SqlError, match=r"json_streamed are JSON without a schema.*weir schemas upload"):
        sql.do("CREATE STREAM json_big AS SELECT id FROM json_streamed WHERE amount > 100")

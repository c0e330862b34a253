"""SQL on topics, with real Spark: tables, live queries, and streams that a runner in this process runs."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.client import streams as rest
from weir.model.definitions import Wanted
from weir.model.errors import RunnerBusyError, SqlError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.topics import TopicName
from weir.spark.sql.parsing import parse
from weir.spark.sql.plan_safety import check_stream
from weir.spark.sql.results import Done
from weir.spark.sql.statements import SelectStream
from weir.spark.sql.stream_query import waiting

from .conftest import Topics
from .sql_session import Sql

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


def test_topics_are_tables_typed_or_not_with_what_else_a_message_has(sql: Sql) -> None:
    sql.orders("sql-a.typed")
    sql.topics.create(2, name="sql_plain")
    sql.topics.fill("sql_plain", ["x", "y"], 1)
    assert ("sql_plain",) in sql.rows("SHOW TABLES")
    assert ("`sql-a.typed`",) in sql.rows("SHOW TABLES")
    assert sql.rows("SELECT value, __key, __offset, __partition, __topic FROM sql_plain ORDER BY __offset") == [
        ("x", "x", 0, 1, "sql_plain"),
        ("y", "y", 1, 1, "sql_plain"),
    ]
    typed = "default.`sql-a.typed`"
    assert sql.rows(f"SELECT customer, sum(amount) s FROM {typed} GROUP BY 1 ORDER BY 1") == [
        ("c0", 3.0),
        ("c1", 4.5),
    ]
    joined = f"SELECT p.value, t.id FROM {typed} t JOIN public.default.sql_plain p ON t.id = p.__offset ORDER BY 2"
    assert sql.rows(joined) == [("x", 0), ("y", 1)]
    assert ("amount", "double", "yes") in sql.rows(f"DESCRIBE {typed}")
    plan = [line for (line,) in sql.rows(f"EXPLAIN SELECT id FROM {typed}")]  # as people read it
    assert plan[0] == "== Physical Plan =="
    assert any("weir" in line for line in plan)
    assert not any("\n" in line for line in plan)


def test_moments_are_shown_in_the_sessions_zone(sql: Sql) -> None:
    for zone, shown in (("Asia/Tokyo", "09:00:00+0900"), ("-03:30", "20:30:00-0330"), ("UTC", "00:00:00+0000")):
        sql.do(f"SET TIME ZONE '{zone}'")
        ((moment,),) = sql.rows("SELECT timestamp_millis(0)")
        assert moment.strftime("%H:%M:%S%z") == shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM sql_nowhere", "there is no topic sql_nowhere"),
        ("SELECT nothing FROM (SELECT 1 AS a)", "nothing"),
        ("CREATE STREAM s AS SELECT value FROM s", "there is no topic s|what it writes"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(sql: Sql, text: str, said: str) -> None:
    with pytest.raises(SqlError, match=said) as failed:
        sql.do(text)
    assert "\n" not in failed.value.what


def test_no_table_of_sparks_own_hides_a_topic_and_none_of_its_statements_takes_a_topic_for_one(sql: Sql) -> None:
    sql.topics.create(name="sql_there")
    for text, said in (
        ("CREATE TABLE sql_there (a int)", "there is a topic sql_there"),
        (
            "CREATE TABLE IF NOT EXISTS default.sql_there USING parquet AS SELECT 1 AS a",
            "there is a topic sql_there",
        ),
        ("DELETE FROM sql_there", "sql_there is a topic, and this"),
        ("DROP TABLE sql_there", "sql_there is a topic, and this"),
    ):
        with pytest.raises(SqlError, match=said):
            sql.do(text)
    assert sql.rows("SELECT * FROM sql_there") == []


def test_a_live_query_prints_what_comes_up_to_its_limit(sql: Sql) -> None:
    sql.orders("sql_live")
    (statement,) = parse("SELECT STREAM id, amount FROM sql_live WHERE id > 2")
    assert isinstance(statement, SelectStream)
    seen: list[tuple[object, ...]] = []
    with closing(sql.console.live(statement)) as batches:
        for some in batches:
            if not seen:
                sql.orders("sql_live", 6, 2)
            seen += [tuple(row) for row in some.rows]
            if len(seen) == 5:
                break
    assert sorted(seen) == [(n, n / 2) for n in range(3, 8)]


def test_a_stream_is_created_paused_resumed_and_dropped_and_writes_everything_once(sql: Sql) -> None:
    sql.orders("sql_orders")
    sql.do("CREATE STREAM sql_copy WITH (partitions = 2) AS SELECT *, amount * 2 AS twice FROM sql_orders")
    with pytest.raises(SqlStreamExistsError):
        sql.do("CREATE STREAM sql_copy AS SELECT * FROM sql_orders")
    assert isinstance(sql.do("CREATE STREAM IF NOT EXISTS sql_copy AS SELECT * FROM sql_orders"), Done)

    def written() -> list[tuple[object, ...]]:
        return sql.rows("SELECT id, customer, twice, __key FROM sql_copy ORDER BY id")

    def expected(count: int) -> list[tuple[object, ...]]:
        keys = [json.dumps({"id": n, "customer": f"c{n % 2}", "amount": n / 2}) for n in range(count)]
        return [(n, f"c{n % 2}", float(n), keys[n]) for n in range(count)]

    sql.until_read("sql_copy")
    assert sql.state("sql_copy") == "running"
    assert written() == expected(6)
    sql.do("PAUSE STREAM sql_copy")
    sql.until(lambda: sql.state("sql_copy") == "paused")
    sql.orders("sql_orders", 6)
    for _ in range(3):
        sql.runner.step()
    assert written() == expected(6)
    sql.do("RESUME STREAM sql_copy")
    sql.until_read("sql_copy")
    assert written() == expected(12)
    (line,) = sql.rows("SHOW STREAMS")
    assert line[:2] == ("sql_copy", "running")
    described = dict(sql.rows("DESCRIBE STREAM sql_copy"))
    assert described["reads"] == "sql_orders"
    checkpoints = list(sql.folder.iterdir())
    assert len(checkpoints) == 1
    sql.do("DROP STREAM sql_copy")
    sql.until(lambda: not checkpoints[0].exists())
    assert written() == expected(12)
    with pytest.raises(SqlStreamNotFoundError):
        sql.do("DROP STREAM sql_copy")
    assert isinstance(sql.do("DROP STREAM IF EXISTS sql_copy"), Done)


def test_groups_are_written_as_they_change_and_windows_once_they_are_over(sql: Sql) -> None:
    sql.orders("sql_sales")
    sql.do(
        "CREATE STREAM sql_totals AS SELECT customer AS key, sum(amount) AS total FROM sql_sales GROUP BY customer"
    )
    sql.do(
        "CREATE STREAM sql_windows AS SELECT window(__timestamp, '2 seconds') AS w, count(*) AS n "
        "FROM sql_sales WATERMARK __timestamp DELAY OF INTERVAL 0 SECONDS GROUP BY 1"
    )
    last = "SELECT __key, max_by(total, __offset) FROM sql_totals GROUP BY 1 ORDER BY 1"
    sql.until_read("sql_totals")
    assert sql.rows(last) == [("c0", 3.0), ("c1", 4.5)]
    sql.orders("sql_sales", 6)
    sql.until_read("sql_totals")
    assert sql.rows(last) == [("c0", 15.0), ("c1", 18.0)]
    sql.until_read("sql_windows")
    windows = "SELECT unix_millis(w_start), unix_millis(w_end), n FROM sql_windows ORDER BY 1"
    sql.until(lambda: len(sql.rows(windows)) >= 5)
    begin = 1_700_000_000_000
    assert sql.rows(windows) == [(begin + at, begin + at + 2000, 2) for at in range(0, 10_000, 2000)]


def test_two_streams_are_joined_by_key_and_time(sql: Sql) -> None:
    sql.orders("sql_left")
    sql.orders("sql_right", count=6)
    sql.do(
        "CREATE STREAM sql_joined AS SELECT l.id AS id, l.amount + r.amount AS both "
        "FROM sql_left WATERMARK __timestamp DELAY OF INTERVAL 10 SECONDS l "
        "JOIN sql_right WATERMARK __timestamp DELAY OF INTERVAL 10 SECONDS r "
        "ON l.id = r.id AND r.__timestamp BETWEEN l.__timestamp AND l.__timestamp + INTERVAL 1 SECOND"
    )
    joined = "SELECT id, both FROM sql_joined ORDER BY id"
    sql.until_read("sql_joined")
    assert sql.rows(joined) == [(n, float(n)) for n in range(6)]


def test_a_stream_that_fails_says_why_and_the_others_run(sql: Sql) -> None:
    sql.orders("sql_given")
    sql.do("CREATE STREAM sql_sorted AS SELECT id FROM sql_given ORDER BY id")
    access = sql.place.access
    for name, query in (("sql_stolen", "SELECT id FROM sql_given"), ("sql_good", "SELECT id FROM sql_given")):
        sources = [TopicName.parse("sql_given")] if name == "sql_good" else []
        rest.put_stream(
            access, TopicName.parse(name), sql=query, sources=sources, options={}, wanted=Wanted.RUNNING
        )
    sql.until(lambda: sql.state("sql_sorted") == sql.state("sql_stolen") == "failed")
    sql.until(lambda: sql.state("sql_good") == "running")
    errors = {str(line[0]): str(line[-1]) for line in sql.rows("SHOW STREAMS")}
    assert "sort" in errors["sql_sorted"].lower()
    assert "not among the sources" in errors["sql_stolen"]
    with pytest.raises(RunnerBusyError):
        rest.take_runner(access, "another", "elsewhere", 5_000)


def test_a_topic_that_was_created_again_fails_its_stream_or_is_read_from_its_start(sql: Sql) -> None:
    sql.orders("sql_renewed", count=3)
    lenient = "WITH (failOnDataLoss = 'false')"
    sql.do("CREATE STREAM sql_strict AS SELECT id FROM sql_renewed")
    sql.do(f"CREATE STREAM sql_lenient {lenient} AS SELECT id FROM sql_renewed")
    for name in ("sql_strict", "sql_lenient"):
        sql.until_read(name)
    for name in ("sql_strict", "sql_lenient"):
        sql.do(f"PAUSE STREAM {name}")
        sql.until(lambda: sql.state(name) == "paused")  # noqa: B023
    sql.topics.delete("sql_renewed")
    sql.orders("sql_renewed", count=8)
    # What waits is the whole new topic, not what lies behind the position in the old one.
    for name in ("sql_strict", "sql_lenient"):
        stream = rest.get_stream(sql.place.access, TopicName.parse(name)).stream
        assert waiting(sql.place, stream, sql.runner.checkpoint(stream)) == 8
        sql.do(f"RESUME STREAM {name}")
    sql.until(lambda: sql.state("sql_strict") == "failed")
    (error,) = (str(line[-1]) for line in sql.rows("SHOW STREAMS") if line[0] == "sql_strict")
    assert "topic sql_renewed was deleted and created again" in error
    assert sql.rows("SELECT id FROM sql_strict ORDER BY id") == [(n,) for n in range(3)]
    sql.until_read("sql_lenient")
    found = sorted(row[0] for row in sql.rows("SELECT id FROM sql_lenient"))
    assert found == sorted([*range(3), *range(8)])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT TRANSFORM(id) USING 'sh -c \"echo > {file}.out\"' AS (b) FROM sql_attacked", "TRANSFORM"),
        ("SELECT * FROM sql_attacked CROSS JOIN text.`{file}`", "not among the sources|may not|name"),
        ("SELECT * FROM sql_attacked CROSS JOIN IDENTIFIER('text.`{file}`')", "not for streams"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM sql_attacked", "not for streams"),
        (  # sqlglot and Spark do not agree where these comments end
            "WITH x AS (SELECT 1) --\\\n{{#\nINSERT OVERWRITE DIRECTORY '{file}.out' USING text SELECT value "
            "FROM text.`{file}` --\\\n#}} SELECT * FROM sql_attacked",
            "INSERT",
        ),
        (
            "SELECT 1 --\\\n{{#\nFROM VALUES (from_avro(X'00', 'x', map('avroSchemaUrl', '{file}'))) --\\\n#}} "
            "FROM sql_attacked",
            "not for streams",
        ),
        (
            "SELECT 1 FROM sql_attacked WATERMARK (SELECT * FROM text.`{file}`) AS x DELAY OF INTERVAL 1 SECOND",
            "topics",
        ),
        ("SELECT 1; ADD JAR '{file}'", "no query"),
        ("SET spark.sql.ansi.enabled = false", "no query|understood"),
    ],
)
def test_a_stored_stream_neither_runs_commands_nor_reads_files_of_the_runners_machine(
    sql: Sql, tmp_path: Path, query: str, said: str
) -> None:
    """Put with the admin API, past the checks of `weir sql`."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret\n")
    source = sql.topics.create(name=f"sql_attacked_{tmp_path.name.replace('-', '_')}")
    sql.topics.fill(source, ["1"])
    name = TopicName.parse("sql_attack")
    rest.put_stream(
        sql.place.access,
        name,
        sql=query.replace("sql_attacked", source).format(file=secret),
        sources=[TopicName.parse(source)],
        options={},
        wanted=Wanted.RUNNING,
    )
    sql.until(lambda: sql.state("sql_attack") == "failed")
    found = rest.get_stream(sql.place.access, name).progress
    assert found is not None
    assert re.search(said, found.error), found.error
    assert not Path(f"{secret}.out").exists()


def test_the_plan_that_spark_made_is_checked_whatever_the_text_looked_like(sql: Sql, tmp_path: Path) -> None:
    """The second line, behind the check of the text."""
    (tmp_path / "secret.txt").write_text("secret\n")
    spark = sql.console._spark()
    spark.readStream.format("rate").load().createOrReplaceTempView("plan_rate")
    for query in (
        "SELECT TRANSFORM(value) USING 'cat' AS (b) FROM plan_rate",
        f"SELECT * FROM plan_rate CROSS JOIN text.`{tmp_path}/secret.txt`",
        "SELECT try_reflect('java.lang.System', 'getenv', 'HOME') FROM plan_rate",
        "WITH c AS (SELECT reflect('java.lang.System', 'getenv', 'HOME') r FROM plan_rate) SELECT * FROM c",
        "SELECT transform(array(1), v -> java_method('java.lang.System', 'getenv', 'HOME')) FROM plan_rate",
    ):
        with pytest.raises(SqlError):
            check_stream(spark.sql(query))
    check_stream(spark.sql("SELECT window(timestamp, '1 minute') w, count(*) FROM plan_rate GROUP BY 1"))


def test_an_epoch_in_a_batch_of_its_own_is_written_once(spark: SparkSession, topics: Topics, sql: Sql) -> None:
    topic = topics.create()
    options = {"kafka.bootstrap.servers": topics.servers, "topic": topic, "sinkId": "by-hand"}
    for epoch in (0, 0, 1):
        frame = spark.range(3).selectExpr(f"'{epoch}' AS value")
        frame.write.format("weir").options(**options, sinkEpoch=str(epoch)).mode("append").save()
    found = sql.rows(f"SELECT value, count(*) FROM `{topic}` GROUP BY 1 ORDER BY 1")
    assert found == [("0", 3), ("1", 3)]

"""Declarative pipelines: files, SQL, the graph, checks, pictures and events as plain functions; and a dry run."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from pyspark.sql import types as t

from weir.cli.pipeline import pipeline
from weir.client.admin import Access, ask_v2
from weir.client.kafka.settings import KafkaSettings, parse_servers
from weir.model.errors import ConfigError, RunnerBusyError
from weir.spark.pipelines import graph as definitions
from weir.spark.pipelines import lineage as drawing
from weir.spark.pipelines import lineage as openlineage
from weir.spark.pipelines import run as state
from weir.spark.pipelines.graph import Dataset, FlowEdge, Graph, Kind, elements, statements
from weir.spark.pipelines.resolution import fits, reads_of_sql, resolve, unfit
from weir.spark.pipelines.run import forget_unmade
from weir.spark.pipelines.spec import Spec, find, load, make

from .conftest import Topics
from .sql_session import patiently, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _spec(folder: Path, text: str = 'name = "shop"\n[sources.orders]\n[sinks.clean]\nkey = "id"\n') -> Spec:
    (folder / "weir-pipeline.toml").write_text(text)
    return load(folder / "weir-pipeline.toml")


GRAPH = Graph(
    {
        "orders": Dataset("orders", Kind.SOURCE, "orders", (("id", "bigint"), ("who", "string"))),
        "log": Dataset("log", Kind.STREAMING_TABLE),
        "clean": Dataset("clean", Kind.SINK, "shop..eu..clean"),
    },
    [FlowEdge("log", "log", ("orders",)), FlowEdge("a<b", "clean", ("orders", "log"))],
)


def test_a_new_pipeline_is_one_that_can_be_read(tmp_path: Path) -> None:
    make(tmp_path / "shop", source="orders", sink="clean")
    spec = load(find(str(tmp_path / "shop" / "transformations")))
    assert (spec.name, list(spec.sources), list(spec.sinks)) == ("shop", ["orders"], ["clean"])
    assert [file.name for file in spec.files()] == ["flows.py", "tables.sql"]
    with pytest.raises(ConfigError, match="not empty"):
        make(tmp_path / "shop", source="orders", sink="clean")


def test_a_new_pipeline_reads_and_writes_topics_of_any_name(tmp_path: Path) -> None:
    make(tmp_path / "shop", source="acme/eu/my-orders.v2", sink="class")
    spec = load(find(str(tmp_path / "shop")))
    assert {name: str(one.topic) for name, one in spec.sources.items()} == {
        "my_orders_v2": "persistent://acme/eu/my-orders.v2"
    }
    assert [(name, one.topic.local) for name, one in spec.sinks.items()] == [("t_class", "class")]
    for file in spec.files():
        if file.suffix == ".py":
            compile(file.read_text(), str(file), "exec")
        else:
            assert "FROM STREAM my_orders_v2" in file.read_text()
    with pytest.raises(ConfigError, match="read and written"):
        make(tmp_path / "other", source="a-b", sink="a.b")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "flows.py",
            "a = 1\n\nb = a / 0\n",
            "flows.py, line 3 cannot be read: ZeroDivisionError: division by zero",
        ),
        ("flows.py", "a = 1\ndef b(:\n", "flows.py, line 2 cannot be read: SyntaxError"),
        ("t.sql", "-- one\nCREATE STREAMING TABLE a;\n\n  SELECT 1", "t.sql: line 4: 'SELECT 1' defines nothing"),
        (
            "t.sql",
            "/* two\nlines */ CREATE FLOW f AS INSERT INTO nowhere SELECT 1",
            "flow f writes nowhere, which is nothing (t.sql, line 2)",
        ),
    ],
)
def test_what_is_wrong_in_a_definition_is_told_with_its_line(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    spec = _spec(tmp_path)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / file).write_text(text)
    with pytest.raises(ConfigError) as wrong:
        definitions.read(spec, None)  # type: ignore[arg-type]
    assert said in wrong.value.what


def test_hints_for_spark_are_no_comments() -> None:
    assert list(statements("SELECT /*+ BROADCAST(a) */ 1 /* no */;")) == [(1, "SELECT /*+ BROADCAST(a) */ 1")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a b"', "name"),
        ('name = "x"\n[source.a]', "did you mean sources"),
        ('name = "x"\n[sources.a]\nread = "all"', "stream or table"),
        ('name = "x"\n[sources.a]\nmode = "permisive"', "write FAILFAST, PERMISSIVE or DROPMALFORMED"),
        ('name = "x"\n[sources.a]\n[sinks.a]', "source and a sink"),
        ('name = "x"\n[sinks.a]\ntopic = "a/b"\nkeys = "id"', "did you mean key"),
        ("name = ", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        _spec(tmp_path, text)
    assert said in f"{wrong.value.what} {wrong.value.hint}"


def test_statements_end_at_semicolons_that_are_in_no_text_or_comment() -> None:
    text = "CREATE VIEW a AS SELECT ';' AS x; -- one; two\nCREATE VIEW `b;c` AS /* ; */ SELECT 1;\n;"
    assert [" ".join(one.split()) for _, one in statements(text)] == [
        "CREATE VIEW a AS SELECT ';' AS x",
        "CREATE VIEW `b;c` AS SELECT 1",
    ]


def test_statements_say_what_they_define_and_write() -> None:
    found = elements(
        "CREATE OR REFRESH STREAMING TABLE big COMMENT 'as said' AS SELECT * FROM STREAM orders;"
        "CREATE STREAMING TABLE later;"
        "create materialized view n as with x as (select 1 as a) select * from x;"
        "CREATE FLOW f AS INSERT INTO clean BY NAME SELECT id FROM STREAM(orders)"
    )
    assert [(one.kind, one.name, one.target) for one in found] == [
        (Kind.STREAMING_TABLE, "big", "big"),
        (Kind.STREAMING_TABLE, "later", ""),
        (Kind.MATERIALIZED_VIEW, "n", "n"),
        (None, "f", "clean"),
    ]
    assert found[0].query == "SELECT * FROM STREAM orders"
    assert found[3].query == "SELECT id FROM STREAM(orders)"
    with pytest.raises(ConfigError, match="defines nothing"):
        elements("SELECT 1")


def test_a_query_reads_tables_and_streams() -> None:
    text = "WITH x AS (SELECT * FROM STREAM(orders)) SELECT * FROM x JOIN STREAM payments p ON x.id = p.id"
    assert sorted(reads_of_sql(text)) == ["orders", "payments"]


def test_a_circle_is_told() -> None:
    graph = Graph(
        {name: Dataset(name, Kind.VIEW) for name in "ab"}, [FlowEdge("a", "a", ("b",)), FlowEdge("b", "b", ("a",))]
    )
    with pytest.raises(ConfigError, match="depend on themselves"):
        graph.layers()


def test_columns_must_go_with_the_schema_without_a_loss() -> None:
    wanted = t.StructType([t.StructField("id", t.LongType()), t.StructField("amount", t.DoubleType())])
    assert not unfit(
        t.StructType([t.StructField("ID", t.IntegerType()), t.StructField("key", t.StringType())]), wanted
    )
    text = t.StructType([t.StructField("amount", t.StringType())])
    assert unfit(text, wanted) == "column amount is string, and must be double"
    assert not fits(t.LongType(), t.IntegerType())
    assert fits(t.ArrayType(t.ByteType()), t.ArrayType(t.LongType()))
    assert not fits(t.DecimalType(10, 2), t.DecimalType(10, 4))


def test_the_picture_shows_each_dataset_and_a_line_for_each_read(tmp_path: Path) -> None:
    drawing.write(GRAPH, "shop & co", tmp_path / "lineage.svg")
    root = ElementTree.parse(tmp_path / "lineage.svg").getroot()
    inside = "{http://www.w3.org/2000/svg}"
    texts = [one.text for one in root.iter(f"{inside}text")]
    assert {"orders", "log", "clean", "topic, written: shop..eu..clean", "a<b"} <= set(texts)
    assert len(root.findall(f"{inside}path")) == 3
    boxes = drawing.place(GRAPH).boxes
    assert boxes["orders"].x < boxes["log"].x < boxes["clean"].x
    with pytest.raises(ConfigError, match="no picture"):
        drawing.write(GRAPH, "shop", tmp_path / "lineage.gif")


def test_lines_go_past_what_stands_between_their_ends() -> None:
    kinds = {"orders": Kind.SOURCE, "log": Kind.STREAMING_TABLE, "days": Kind.MATERIALIZED_VIEW, "out": Kind.SINK}
    graph = Graph({name: Dataset(name, kind) for name, kind in kinds.items()})
    graph.flows += [FlowEdge("log", "log", ("orders",)), FlowEdge("days", "days", ("log",))]
    graph.flows += [FlowEdge("last", "out", ("days",)), FlowEdge("all", "out", ("orders", "log"))]
    picture = drawing.place(graph)
    assert len(picture.lines) == 5
    for line in picture.lines:
        for (x1, y1), (x2, y2) in pairwise(line.points):
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            assert not [
                box for box in picture.boxes.values() if box.x < x < box.x + 200 and box.y < y < box.y + 56
            ]


def test_many_lines_that_go_past_a_layer_go_together_and_long_names_stay_apart() -> None:
    graph = Graph({"orders": Dataset("orders", Kind.SOURCE)})
    for number in range(30):
        table, view = f"a_table_of_some_shop_or_other_{number}", f"view_{number}"
        graph.datasets |= {table: Dataset(table, Kind.STREAMING_TABLE), view: Dataset(view, Kind.VIEW)}
        graph.flows += [FlowEdge(table, table, ("orders",)), FlowEdge(view, view, (table, "orders"))]
    picture = drawing.place(graph)
    assert picture.high < 31 * (56 + 28) + 48
    past = {line.points[1] for line in picture.lines if len(line.points) == 4}
    assert len(past) == 1
    drawn = ElementTree.fromstring(drawing.svg(graph, "shop"))
    texts = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert len({one for one in texts if one.startswith("a_table")}) == 30


def test_the_picture_is_a_png_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawing.write(GRAPH, "shop", tmp_path / "lineage.png")
    assert (tmp_path / "lineage.png").read_bytes().startswith(b"\x89PNG")


def test_events_say_what_each_flow_reads_and_writes(tmp_path: Path) -> None:
    spec, run = _spec(tmp_path), uuid4()
    whole, log, clean = openlineage.events(spec, GRAPH, "a:9092,b:9092", run=run, kind="FAIL", why="no disk")
    assert whole["eventType"] == "FAIL"
    assert whole["run"]["runId"] == str(run)
    assert whole["run"]["facets"]["errorMessage"]["message"] == "no disk"
    assert [(one["namespace"], one["name"]) for one in whole["inputs"]] == [("kafka://a:9092", "orders")]
    assert [one["name"] for one in clean["inputs"]] == ["orders", "shop.log"]
    assert [one["name"] for one in clean["outputs"]] == ["shop..eu..clean"]
    assert clean["run"]["facets"]["parent"]["run"]["runId"] == str(run)
    assert log["inputs"][0]["facets"]["schema"]["fields"][0] == {"name": "id", "type": "bigint"}
    for one in (whole, log, clean):
        assert {"eventType", "eventTime", "producer", "schemaURL", "run", "job"} <= set(one)


def test_events_go_to_a_file_and_to_a_url(tmp_path: Path) -> None:
    taken: list[tuple[str, dict[str, object]]] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    events = openlineage.events(_spec(tmp_path), GRAPH, "a:9092", run=uuid4(), kind="START")
    server = HTTPServer(("127.0.0.1", 0), Taking)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        openlineage.sender(f"http://127.0.0.1:{server.server_port}", tmp_path, lambda: None)(events)  # type: ignore[arg-type, return-value]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert taken == [("/api/v1/lineage", one) for one in events]
    send = openlineage.sender("events.jsonl", tmp_path, lambda: None)  # type: ignore[arg-type, return-value]
    send(events)
    send(events)
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        *events,
        *events,
    ]
    with pytest.raises(ConfigError, match="cannot go"):
        openlineage.sender("ftp://x", tmp_path, lambda: None)  # type: ignore[arg-type, return-value]


@pytest.mark.process
@pytest.mark.xdist_group("spark")
def test_events_go_to_a_topic_by_their_jobs(topics: Topics, tmp_path: Path) -> None:
    spec, run, topic = _spec(tmp_path), uuid4(), topics.create(partitions=3)
    send = openlineage.sender(f"topic:{topic}", tmp_path, lambda: KafkaSettings(parse_servers(topics.servers)))
    sent = [openlineage.events(spec, GRAPH, "a:9092", run=run, kind=kind) for kind in ("START", "COMPLETE")]
    for events in sent:
        send(events)
    found = [(key, json.loads(value)) for key, value in stored(topics.servers, topic)]
    for job in ("shop", "shop.log", "shop.a<b"):
        told = [one for key, one in found if key == job]
        assert told == [one for events in sent for one in events if one["job"]["name"] == job], "in their order"
    assert len(found) == 6


@pytest.mark.process
def test_a_detached_run_is_seen_alone_and_stopped_before_it_has_begun(tmp_path: Path) -> None:
    make(tmp_path / "shop", source="orders", sink="clean")
    storage = tmp_path / "shop" / "storage"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and never answers
        place = f"127.0.0.1:{silent.getsockname()[1]}"

        def do(*words: str) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-m", "weir.cli.main", "pipeline", *words, "-f", str(tmp_path / "shop")]
            return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

        def shown() -> dict[str, object]:
            found: dict[str, object] = json.loads(do("status", "--json").stdout)
            return found

        run = ("run", "--url", "http://" + ",".join([place] * 50))  # each is waited for
        try:
            started = do(*run, "--detach")
            assert started.returncode == 0, started.stderr
            patiently(lambda: state.read(storage).state == "starting")
            status = shown()
            assert status["state"] == "starting"
            assert f"process {status['process']};" in started.stdout
            again = do(*run, "--once")
            assert again.returncode != 0
            assert f"it runs already, as process {status['process']}" in again.stderr
            assert "shop is stopped" in do("stop").stdout
            assert shown()["state"] == "stopped"
            assert "shop does not run" in do("stop").stdout
        finally:
            if state.is_running(storage):
                with suppress(ProcessLookupError):
                    os.killpg(state.read(storage).pid, signal.SIGKILL)


def test_one_runner_at_a_time_and_who_died_does_not_run(tmp_path: Path) -> None:
    with state.alone(tmp_path):
        state.write(tmp_path, state.State("shop", 1, "running"))
        assert state.is_running(tmp_path)
        with pytest.raises(RunnerBusyError, match=f"process {os.getpid()}"), state.alone(tmp_path):
            pass
    found = state.read(tmp_path)
    assert (found.state, found.error) == ("stopped", "it ended without a word")
    assert not state.stop(tmp_path)


def test_who_has_the_lock_is_stopped_and_nobody_whose_number_a_run_before_has_left(tmp_path: Path) -> None:
    held = f"""
import sys, time
from pathlib import Path
from weir.spark.pipelines.run import alone
with alone(Path({str(tmp_path)!r})):
    print(flush=True)
    time.sleep(600)
"""
    wait = "print(flush=True); input()"
    programs = [[sys.executable, "-c", held], [sys.executable, "-c", wait]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    runner, stranger = (subprocess.Popen(program, **pipes) for program in programs)  # type: ignore[call-overload]
    with runner, stranger:
        for one in (runner, stranger):
            one.stdout.readline()
        state.write(tmp_path, state.State("shop", stranger.pid, "running"))
        assert state.stop(tmp_path)
        assert runner.wait() == -signal.SIGTERM
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_a_storage_is_one_pipelines_own(tmp_path: Path) -> None:
    state.check_own(tmp_path, "shop")
    state.write(tmp_path, state.State("shop"))
    state.check_own(tmp_path, "shop")
    with pytest.raises(ConfigError, match=r"is the storage of the pipeline shop .*of its own"):
        state.check_own(tmp_path, "stock")


def test_the_spark_of_one_that_was_killed_ends_before_the_next_and_no_other_does(tmp_path: Path) -> None:
    words = ["org.apache.spark.deploy.SparkSubmit", "--conf", "spark.app.name=weir-pipeline-shop"]
    program = [sys.executable, "-c", "print(flush=True); input()", *words]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        state.write(tmp_path, state.State("shop", spark=process.pid))
        state.end_orphan(tmp_path, "shopping")
        assert process.poll() is None
        state.end_orphan(tmp_path, "shop")
    assert process.returncode == -signal.SIGKILL
    state.end_orphan(tmp_path, "shop")


def test_a_catalog_that_was_not_made_to_its_end_is_made_anew_and_another_stays(tmp_path: Path) -> None:
    for name in ("unmade", "made"):
        (tmp_path / name / "seg0").mkdir(parents=True)
    (tmp_path / "made" / "service.properties").touch()
    for name in ("unmade", "made", "none"):
        forget_unmade(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["made"]


def test_the_commands_make_and_show_a_pipeline(tmp_path: Path) -> None:
    runner, shop = CliRunner(), str(tmp_path / "shop")
    made = runner.invoke(pipeline, ["init", shop, "--source", "orders", "--sink", "clean"])
    assert made.exit_code == 0, made.output
    assert "shop/weir-pipeline.toml" in made.output
    shown = runner.invoke(pipeline, ["status", "-f", shop, "--json"])
    assert json.loads(shown.output)["state"] == "stopped"
    assert "does not run" in runner.invoke(pipeline, ["stop", "-f", shop]).output


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "double"}],
}


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_dry_run_finds_what_does_not_go_with_the_registry(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    from weir.spark.tables.names import WeirCluster

    orders, clean, new = topics.create(), topics.create(), topics.create()
    place = WeirCluster.find(Access(topics.up.http_url))
    for name in (orders, clean):
        body = {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}
        ask_v2(place.access, "POST", f"schemas/public/default/{name}/schema", body)
    spec = _spec(
        tmp_path,
        f'name = "shop"\n[sources.orders]\ntopic = "{orders}"\n[sources.gone]\ntopic = "no-such-topic"\n'
        f'[sinks.clean]\ntopic = "{clean}"\nkey = "id"\n[sinks.fresh]\ntopic = "{new}"\n',
    )
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flows.py").write_text(
        "from pyspark import pipelines as dp\n"
        "@dp.append_flow(target='clean')\n"
        "def good():\n    return spark.readStream.table('big')\n"
        "@dp.append_flow(target='clean')\n"
        "def texts():\n    return spark.readStream.table('orders').selectExpr('id', 'string(amount) AS amount')\n"
        "@dp.append_flow(target='clean')\n"
        "def wrong():\n    return spark.readStream.table('orders').select('id', 'colour')\n"
        "@dp.append_flow(target='clean')\n"
        "def raising():\n    return spark.readStream.table('orders').where(amuont > 1)\n"
    )
    (tmp_path / "transformations" / "z.sql").write_text(
        "CREATE TEMPORARY VIEW big AS SELECT id, amount FROM STREAM orders WHERE amount > 10;\n"
        "CREATE FLOW counted AS INSERT INTO fresh BY NAME SELECT id * 2 AS twice FROM STREAM big;"
    )
    found = resolve(spec, place, definitions.read(spec, spark))
    assert {(one.name, one.inputs, one.target) for one in found.graph.flows} == {
        ("good", ("big",), "clean"),
        ("texts", ("orders",), "clean"),
        ("big", ("orders",), "big"),
        ("counted", ("big",), "fresh"),
    }
    assert list(found.to_register) == ["fresh"]
    assert found.written["good"].names == ["id", "amount", "key"]
    problems = "\n".join(found.problems)
    assert "source gone: there is no topic" in problems
    assert "flow texts: column amount is string, and must be double" in problems
    assert "flow wrong" in problems
    assert "colour" in problems
    assert "gone is in the file, and no flow reads" in problems
    assert "good" not in problems
    assert "flow raising: NameError: name 'amuont' is not defined (flows.py, line 13)" in problems
    assert "(flows.py, line 8)" in problems  # where wrong is defined
    assert not spark.catalog.tableExists("orders"), "nothing stays in the session"


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_a_dry_run_prints_problems_and_no_log_lines_of_pyspark(topics: Topics, tmp_path: Path) -> None:
    orders = topics.create()
    (tmp_path / "weir-pipeline.toml").write_text(f'name = "shop"\n[sources.orders]\ntopic = "{orders}"\n')
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flows.py").write_text(
        "from pyspark import pipelines as dp\n"
        "@dp.materialized_view\n"
        "def wrong():\n    return spark.read.table('orders').select('colour')\n"
    )
    command = [sys.executable, "-m", "weir.cli.main", "pipeline", "run", "--dry-run", "-f", str(tmp_path)]
    done = subprocess.run(
        [*command, "--url", topics.up.http_url, "--master", "local[1]"],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert any(line.startswith("problem: flow wrong: ") for line in done.stderr.splitlines()), done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("{")] == []

"""Files with `engine = "spark"`: Spark's readers and writers, each record once, whatever dies."""

import csv
import gzip
import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.client.kafka.cluster import Cluster
from weir.connect.stores import Store
from weir.connect.values import latest_schema, record_of, register
from weir.model.errors import ConfigError, ConnectorError
from weir.model.topics import TopicName
from weir.testing.processes.s3 import S3Server

from .conftest import Weir
from .runner_kit import Cli, RunnerProcess, until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(3600),
]


def source(topic: str, path: object, **more: Any) -> dict[str, Any]:
    said = {"type": "files", "path": str(path), "engine": "spark", "settle": "0ms", **more}
    return {"topic": topic, "source": said}


def sink(topic: str, path: object, **more: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "sink": {"type": "files", "path": str(path), "engine": "spark", "max_age": "0ms", **more},
    }


def lines(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*/partition=*/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_lines_of_json_come_as_they_are_by_any_name_and_compressed(weir: Weir, folder: Path, unique: str) -> None:
    (folder / "sub").mkdir()
    (folder / "é [1] {a,b}*?.json").write_text('{"n": 0, "deep": {"x": [1.50]}}\n\n{"n": 1, "other": "ß"}\n')
    (folder / "sub" / "b.json.gz").write_bytes(gzip.compress(b'{"n": 2}\r\n{"n": 3}'))
    (folder / "empty.json").write_text("")
    (folder / ".hidden.json").write_text("no")
    (folder / "c.txt").write_text("no")
    said = source(unique, folder, pattern="*.json*", key="n")
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(unique)) == 4)
        running.steps()
    (folder / "d.json").write_text('{"n": 4}\n')
    os.utime(folder / "d.json", (1, 1))  # one that is older than all that were read
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(unique)) == 5)
        running.steps()
    found = {bytes(one.key or b""): json.loads(bytes(one.value or b"")) for _, one in weir.messages(unique)}
    assert found == {
        b"0": {"n": 0, "deep": {"x": [1.5]}},
        b"1": {"n": 1, "other": "ß"},
        **{b"%d" % number: {"n": number} for number in (2, 3, 4)},
    }


def test_csv_is_typed_by_the_topics_schema_whatever_the_order_of_its_columns(
    weir: Weir, folder: Path, unique: str
) -> None:
    weir.create(unique)
    columns = [("id", "int"), ("price", "double"), ("note", "string")]
    register(weir.place.access, TopicName.parse(unique), "JSON", record_of("row", columns))
    (folder / "a.csv").write_text('id;price;note\n1;2.5;"x;""y\nz"\n2;;007\n')
    (folder / "b.csv").write_text("note;id;price\nw;3;1e3\n")
    said = source(unique, folder, format="csv", delimiter=";")
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 3)
    assert sorted(weir.values(unique), key=lambda row: row["id"]) == [
        {"id": 1, "price": 2.5, "note": 'x;"y\nz'},
        {"id": 2, "price": None, "note": "007"},
        {"id": 3, "price": 1000.0, "note": "w"},
    ]
    (folder / "c.csv").write_text("id;price;note\n4;1;x\n5;1\n")
    with weir.task(unique, said) as running, pytest.raises(ConnectorError, match=r"^c\.csv .*5;1.*mend the file"):
        running.steps()
    (folder / "c.csv").write_text("id;price;note\n4;1;x\nmany;1;y\n")
    with weir.task(unique, said) as running, pytest.raises(ConnectorError, match=r"c\.csv: .*many.*mend the file"):
        running.steps()
    (folder / "c.csv").write_text("id;price;note\n4;1;x\n")
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 4)


@pytest.mark.parametrize("broken", ["json", "parquet"])
def test_a_broken_file_is_named_nothing_of_it_comes_and_it_may_be_mended_or_taken_away(
    weir: Weir, folder: Path, unique: str, broken: str
) -> None:
    good = {"json": b'{"n": 1}\n', "parquet": _parquet({"n": [1]})}[broken]
    bad = {"json": b'{"n": 2}\n{"n": \n', "parquet": b"PAR1 not really"}[broken]
    (folder / "a").write_bytes(good)
    (folder / "b ü").write_bytes(bad)
    said = source(unique, folder, format=broken)
    with weir.task(unique, said) as running, pytest.raises(ConnectorError, match=r"b ü.*mend the file"):
        running.steps()
    assert weir.messages(unique) == []
    (folder / "b ü").unlink()
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 1)
        running.steps()
    assert weir.values(unique) == [{"n": 1}]


def _parquet(columns: dict[str, Any]) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out)
    return bytes(out.getvalue())


def test_parquet_goes_both_ways_with_its_types_and_with_columns_that_come_later(
    weir: Weir, folder: Path, tmp_path: Path, unique: str
) -> None:
    times = pa.array([1, 2, 3], pa.timestamp("us", "UTC"))
    (folder / "a.parquet").write_bytes(_parquet({"id": [1, 2, 3], "name": ["a", None, "c"], "at": times}))
    said = source(unique, folder, format="parquet", values="avro", key="id")
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(unique)) == 3)
        (folder / "b.parquet").write_bytes(_parquet({"id": [4], "more": [2.5]}))
        running.until(lambda: len(weir.messages(unique)) == 4)
    schema = latest_schema(weir.place.access, TopicName.parse(unique))[-1]
    assert (schema.kind, [one["name"] for one in json.loads(schema.definition)["fields"]]) == (
        "AVRO",
        ["id", "name", "at", "more"],
    )
    out = tmp_path / "out"
    with weir.task(f"{unique}-out", sink(unique, out, format="parquet")) as running:
        running.until(lambda: list(out.rglob("*.parquet")))
    (file,) = out.glob(f"{unique}/partition=0/*.parquet")
    found = sorted(pq.read_table(file, partitioning=None).to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["name"], row["more"]) for row in found] == [
        (1, "a", None),
        (2, None, None),
        (3, "c", None),
        (4, None, 2.5),
    ]
    assert [row["at"] and row["at"].microsecond for row in found] == [1, 2, 3, None]


def test_messages_become_lines_csv_and_parquet_with_and_without_a_schema(
    weir: Weir, folder: Path, unique: str
) -> None:
    weir.create(unique, 2)
    weir.fill(unique, [(b"k", b'{"a": 1, "b": [1]}'), (b"gone", None)], headers=((b"h", b"v"),))
    weir.fill(unique, [(b"l", b'{"a": 2, "c": "x,\\"y"}')], partition=1)
    with weir.task(f"{unique}-json", sink(unique, folder / "json")) as running:
        running.until(lambda: len(list(folder.rglob("*.jsonl"))) == 2)
    assert lines(folder / "json") == [{"a": 1, "b": [1]}, {"__key": "gone"}, {"a": 2, "c": 'x,"y'}]
    with weir.task(f"{unique}-csv", sink(unique, folder / "csv", format="csv", columns="all")) as running:
        running.until(lambda: len(list(folder.rglob("*.csv"))) == 2)
    files = sorted((folder / "csv").rglob("*.csv"))
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    assert [(row["a"], row["b"], row["c"], row["__key"], row["__offset"]) for row in rows] == [
        ("1", "[1]", "", "k", "0"),
        ("", "", "", "gone", "1"),
        ("2", "", 'x,"y', "l", "0"),
    ]
    with weir.task(f"{unique}-parquet", sink(unique, folder / "parquet", format="parquet")) as running:
        running.until(lambda: len(list(folder.rglob("*.parquet"))) == 2)
    files = sorted((folder / "parquet").rglob("*.parquet"))
    found = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert [(row["a"], row["b"], row["c"], row["__key"]) for row in found] == [
        (1, [1], None, None),
        (None, None, None, "gone"),
        (2, None, 'x,"y', None),
    ]
    register(weir.place.access, TopicName.parse(unique), "JSON", record_of("row", [("a", "int")]))
    weir.fill(unique, [(b"k", b"no object of JSON")])
    for form in ("json", "parquet"):
        wrong = pytest.raises(ConnectorError, match=rf"{unique}.*offset 2")
        with weir.task(f"{unique}-{form}", sink(unique, folder / form, format=form)) as running, wrong:
            running.steps()


def test_a_bucket_is_read_and_written_as_a_folder_is(
    weir: Weir, s3: S3Server, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEY", s3.environment["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("SECRET", s3.environment["AWS_SECRET_ACCESS_KEY"])
    with_keys = {"endpoint": s3.url, "access_key": {"env": "KEY"}, "secret_key": {"env": "SECRET"}}
    path = f"s3://{s3.bucket}/{unique}"
    store = Store(weir.job(unique, source(unique, f"{path}/in", **with_keys)))
    store.write("é [1] {a,b}%20.json", b'{"n": 0}\n{"n": 1}\n')
    store.write("sub/b.json.gz", gzip.compress(b'{"n": 2}'))
    store.write("broken.json", b'{"n": 3}\n{')
    said = source(unique, f"{path}/in", **with_keys)
    wrong = pytest.raises(ConnectorError, match=r"^broken\.json: .*mend the file")
    with weir.task(unique, said) as running, wrong:
        running.steps()
    assert weir.messages(unique) == []
    store.write("broken.json", b'{"n": 3}\n{"n": 4, "long": "than it was before"}\n')
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 5)
        running.steps()
    assert sorted(row["n"] for row in weir.values(unique)) == [0, 1, 2, 3, 4]
    for form in ("csv", "parquet"):
        topic, inside = f"{unique}-{form}", f"{path}/{form}"
        written = Store(weir.job(topic, sink(unique, inside, **with_keys)))
        with weir.task(topic, sink(unique, inside, format=form, **with_keys)) as running:
            running.until(lambda written=written: len(list(written.list())) == 1)
        with weir.task(f"{topic}-back", source(topic, inside, format=form, **with_keys)) as running:
            running.until(lambda topic=topic: len(weir.values(topic)) == 5)
        assert sorted(int(row["n"]) for row in weir.values(topic)) == [0, 1, 2, 3, 4]
    with_staging = Path(tempfile.gettempdir(), "_weir_connect")
    assert not [one for one in with_staging.rglob("*") if one.is_file()]


def test_what_it_cannot_do_is_said(weir: Weir, unique: str) -> None:
    with pytest.raises(ConfigError, match="no dead letters"):
        weir.task(unique, sink(unique, "/tmp/x", on_error="dead_letter"))


def drivers(runner: int) -> Iterator[int]:
    """The JVMs below a process."""
    found = subprocess.run(["pgrep", "-P", str(runner)], capture_output=True, text=True, check=False).stdout
    for child in map(int, found.split()):
        name = Path(f"/proc/{child}/comm")
        if name.exists() and name.read_text().strip() == "java":
            yield child
        yield from drivers(child)


_LINES, _FILES = 50, 3


def test_each_record_is_there_once_though_driver_and_runner_are_killed(
    weir: Weir, weir_connect: Cli, runner: RunnerProcess, folder: Path, tmp_path: Path, unique: str
) -> None:
    """Files to a topic and the topic to files at once; files come while it goes on."""
    out = tmp_path / "out"
    for side, where, more in (
        ("source", folder, 'settle = "0ms"\npoll = "50ms"\nkey = "n"'),
        ("sink", out, 'max_age = "300ms"\nmax_records = 40'),
    ):
        file = tmp_path / f"{unique}-{side}.toml"
        about = f'topic = "{unique}"\npartitions = 2\n' if side == "source" else f'topic = "{unique}"\n'
        file.write_text(f'{about}[{side}]\ntype = "files"\nengine = "spark"\npath = "{where}"\n{more}\n')
        weir_connect("add", str(file))
    weir.create(unique, 2)
    wanted: list[int] = []

    def carried() -> int:
        return len(lines(out))

    def more_files() -> None:
        for _ in range(_FILES):
            values = range(len(wanted), len(wanted) + _LINES)
            wanted.extend(values)
            hidden, name = folder / ".next", folder / f"{len(wanted):05d}.json"
            hidden.write_text("".join(f'{{"n": {value}}}\n' for value in values))
            hidden.rename(name)

    for killed in ("driver", "runner", "none"):
        if killed != "runner":
            runner.end(signal.SIGTERM)
            runner.start()
        more_files()
        before = carried()
        until(lambda before=before: carried() > before)  # there is more to be written, both ways
        more_files()
        if killed == "runner":
            runner.end(signal.SIGKILL)
        elif killed == "driver":
            for driver in drivers(runner.pid):
                os.kill(driver, signal.SIGKILL)
    until(lambda: carried() >= len(wanted))
    for side in ("source", "sink"):
        until(lambda side=side: weir_connect.status(f"{unique}-{side}")["state"] == "running")
    assert Counter(row["n"] for row in lines(out)) == Counter(wanted)
    assert Counter(row["n"] for row in weir.values(unique)) == Counter(wanted)
    # Nothing comes while it is paused or stopped, and all of it behind that.
    for word, state, again in (("pause", "paused", 1), ("stop", "stopped", 2)):
        weir_connect(word, f"{unique}-source")
        until(lambda state=state: weir_connect.status(f"{unique}-source")["state"] == state)
        (folder / f"{word}.json").write_text('{"n": -1}\n')
        assert len(weir.values(unique)) == len(wanted) + again - 1
        weir_connect("resume", f"{unique}-source")
        until(lambda again=again: len(weir.values(unique)) == len(wanted) + again)
    until(lambda: carried() == len(wanted) + 2)
    weir_connect("remove", f"{unique}-source", f"{unique}-sink")
    with Cluster(weir.place.kafka) as cluster:
        until(lambda: f"connect-{unique}-source-positions" not in cluster.topics())

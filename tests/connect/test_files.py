"""Folders and an S3-compatible server: each file once, each message in one file."""

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.connect import values as arrow
from weir.connect.connectors.files import FilesSource
from weir.connect.stores import Store
from weir.connect.task import Job
from weir.connect.values import latest_schema, record_of, register
from weir.model.errors import ConnectorError
from weir.model.topics import TopicName
from weir.testing.processes.s3 import S3Server

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


def source(topic: str, path: object, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "source": {"type": "files", "path": str(path), "settle": "0ms", **more}}


def sink(topic: str, path: object, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "sink": {"type": "files", "path": str(path), "max_age": "0ms", **more}}


def test_lines_of_json_come_once_also_if_the_runner_dies_within_a_file(
    weir: Weir, folder: Path, unique: str
) -> None:
    (folder / "a.json").write_text("".join(f'{{"n": {number}}}\n' for number in range(10)))
    (folder / ".hidden.json").write_text('{"n": -1}\n')
    (folder / "b.txt").write_text('{"n": -1}\n')
    said = source(unique, folder, pattern="*.json", key="n", batch=4)
    with weir.task(unique, said) as running:
        running.steps(1)
    assert len(weir.values(unique)) == 4
    (folder / "sub").mkdir()
    (folder / "sub" / "c.json").write_text('{"n": 10}\n')
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 11)
        running.steps()
    assert [row["n"] for row in weir.values(unique)] == list(range(11))
    assert bytes(weir.messages(unique)[3][1].key or b"") == b"3"


def test_a_link_that_leads_out_of_the_folder_is_not_read(weir: Weir, folder: Path, unique: str) -> None:
    """Whoever may write into the folder must not have the runner read other files of its machine."""
    outside = folder.parent / f"{folder.name}-secret"
    outside.mkdir()
    (outside / "s.json").write_text('{"n": -1}\n')
    (folder / "file.json").symlink_to(outside / "s.json")
    (folder / "sub").symlink_to(outside)
    (folder / "a.json").write_text('{"n": 1}\n')
    (folder / "b.json").symlink_to("a.json")
    with weir.task(unique, source(unique, folder)) as running:
        running.until(lambda: len(weir.values(unique)) == 2)
        running.steps()
    assert [row["n"] for row in weir.values(unique)] == [1, 1]


def test_a_link_in_place_of_a_file_being_written_is_replaced_and_not_followed(
    weir: Weir, folder: Path, tmp_path: Path, unique: str
) -> None:
    store = Store(weir.job(unique, sink(unique, folder)))
    other = tmp_path / "other"
    other.write_text("kept")
    (folder / f".new.{os.getpid()}").symlink_to(other)
    store.write("new", b"data")
    assert (folder / "new").read_bytes() == b"data"
    assert other.read_text() == "kept"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (b"a.json", b'"../../etc/passwd"', "is not a number of records"),
        (b"a.json", b"-7", "is not a number of records"),
        (b"a.json", b"{", "is not a position"),
        (b"\xff", b"1", "is not a position"),
    ],
)
def test_positions_that_another_role_has_written_are_refused_with_what_to_do(
    weir: Weir, folder: Path, unique: str, key: bytes, value: bytes, told: str
) -> None:
    (folder / "a.json").write_text('{"n": 1}\n')
    weir.fill(weir.create(f"connect-{unique}-positions"), [(key, value)])
    with pytest.raises(ConnectorError, match=told) as bad, weir.task(unique, source(unique, folder)) as running:
        running.steps()
    assert "remove the connector" in (bad.value.hint or "")


def test_csv_is_typed_by_the_topics_schema(weir: Weir, folder: Path, unique: str) -> None:
    weir.create(unique)
    columns = [("id", "int"), ("price", "double"), ("note", "string")]
    register(weir.place.access, TopicName.parse(unique), "JSON", record_of("row", columns))
    (folder / "a.csv").write_text('id;price;note\n1;2.5;"x;y"\n2;;z\n')
    with weir.task(unique, source(unique, folder, format="csv", delimiter=";")) as running:
        running.until(lambda: len(weir.values(unique)) == 2)
    assert weir.values(unique) == [
        {"id": 1, "price": 2.5, "note": "x;y"},
        {"id": 2, "price": None, "note": "z"},
    ]
    (folder / "b.csv").write_text("id;price;note\nmany;1;x\n")
    wrong = pytest.raises(ConnectorError, match=r"b.csv, record 1: .*many")
    with weir.task(unique, source(unique, folder, format="csv", delimiter=";")) as running, wrong:
        running.steps()


def test_a_file_that_was_just_changed_waits(weir: Weir, folder: Path, unique: str) -> None:
    (folder / "a.txt").write_text("x\n")
    said = source(unique, folder, format="text", settle="1h")
    with weir.task(unique, said) as running:
        running.steps()
        assert weir.messages(unique) == []
        os.utime(folder / "a.txt", (1, 1))
        running.until(lambda: weir.messages(unique))
    assert [bytes(one.value or b"") for _, one in weir.messages(unique)] == [b"x"]


def test_parquet_goes_both_ways_with_its_types(weir: Weir, folder: Path, tmp_path: Path, unique: str) -> None:
    table = pa.table(
        {"id": [1, 2, 3], "name": ["a", None, "c"], "at": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))}
    )
    pq.write_table(table, folder / "a.parquet")
    with weir.task(unique, source(unique, folder, format="parquet", values="avro")) as running:
        running.until(lambda: len(weir.messages(unique)) == 3)
    assert latest_schema(weir.place.access, TopicName.parse(unique))[-1].kind == "AVRO"
    out = tmp_path / "out"
    with weir.task(f"{unique}-out", sink(unique, out, format="parquet")) as running:
        running.until(lambda: list(out.rglob("*.parquet")))
    (file,) = out.rglob("*.parquet")
    assert pq.read_table(file, partitioning=None).to_pylist() == table.to_pylist()


def written(folder: Path, suffix: str = "jsonl") -> list[Any]:
    files = sorted(folder.rglob(f"*.{suffix}"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_messages_are_in_one_file_each_whatever_dies_between_file_and_position(
    weir: Weir, folder: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", f'{{"n": {number}}}'.encode()) for number in range(5)])
    said = sink(unique, folder)
    with weir.task(unique, said) as running:
        inlet: Any = running.task.inlet  # type: ignore[attr-defined]
        monkeypatch.setattr(inlet, "commit", lambda positions: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            running.steps()
    assert [row["n"] for row in written(folder)] == list(range(5))
    weir.fill(unique, [(b"k", b'{"n": 5}'), (b"k", b"no json")])
    with weir.task(unique, said) as running:
        running.until(lambda: len(written(folder)) == 7)
        running.steps()
    assert written(folder) == [*({"n": number} for number in range(6)), {"value": "no json"}]
    names = sorted(file.name for file in folder.rglob("*.jsonl"))
    assert names == [f"{0:020d}-{4:020d}.jsonl", f"{5:020d}-{6:020d}.jsonl"]


def test_csv_files_have_what_there_is_about_a_message_if_wanted(weir: Weir, folder: Path, unique: str) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", b'{"a": 1, "b": [1]}'), (b"gone", None)], headers=((b"h", b"v"),))
    with weir.task(unique, sink(unique, folder, format="csv", columns="all")) as running:
        running.until(lambda: list(folder.rglob("*.csv")))
    (file,) = folder.rglob("*.csv")
    first, second, third = file.read_text().splitlines()
    assert first == "a,b,__key,__partition,__offset,__timestamp,__headers"
    assert second.startswith("1,[1],k,0,0,1700000000000,")
    assert third.startswith(",,gone,0,1,")


def test_a_bucket_is_read_and_written_as_a_folder_is(
    weir: Weir, s3: S3Server, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KEY", s3.environment["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("SECRET", s3.environment["AWS_SECRET_ACCESS_KEY"])
    store = {"endpoint": s3.url, "access_key": {"env": "KEY"}, "secret_key": {"env": "SECRET"}}
    weir.create(unique)
    weir.fill(unique, [(b"k", f'{{"n": {number}}}'.encode()) for number in range(5)])
    path = f"s3://{s3.bucket}/{unique}"
    said = sink(unique, path, **store)
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.position)
    with weir.task(unique, said) as running:
        running.steps()
    job: Job = weir.job(unique, said)
    assert len(list(Store(job).list())) == 1
    copy = f"{unique}-copy"
    with weir.task(copy, source(copy, path, **store)) as running:
        running.until(lambda: len(weir.values(copy)) == 5)
        running.steps()
    assert [row["n"] for row in weir.values(copy)] == list(range(5))


def test_a_broken_record_is_told_by_its_file_and_number_and_comes_when_it_is_mended(
    weir: Weir, folder: Path, unique: str
) -> None:
    for name, form, broken, number in (
        ("ü b.json", "json", '{"n": 1}\n\n{"n": 2}\n{"n": \n', 3),
        ("c.csv", "csv", 'n\n1\n2\n"3\n', 3),
        ("d.csv", "csv", "n,m\n1,2\n3\n", 2),
    ):
        topic = f"{unique}-{form}-{number}"
        (folder / name).write_text(broken)
        wrong = pytest.raises(ConnectorError, match=rf"{name}, record {number}: .*mend the file")
        with weir.task(topic, source(topic, folder, format=form)) as running, wrong:
            running.steps()
        assert weir.messages(topic) == []
        (folder / name).write_text('{"n": 1}\n{"n": 2}\n' if form == "json" else "n\n1\n2\n")
        with weir.task(topic, source(topic, folder, format=form)) as running:
            running.until(lambda topic=topic: len(weir.values(topic)) == 2)  # type: ignore[misc]
        (folder / name).unlink()


def test_what_is_compressed_empty_or_large_is_read_in_pieces(
    weir: Weir, folder: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.connect.connectors.files._MOST_BYTES", 1000)
    (folder / "a.json").write_text("")
    (folder / "b.json.gz").write_bytes(gzip.compress(b"".join(b'{"n": %d}\n' % number for number in range(500))))
    said = source(unique, folder)
    with weir.task(unique, said) as running:
        running.steps(3)
        assert 0 < len(weir.values(unique)) < 500
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 500)
        running.steps()
    assert [row["n"] for row in weir.values(unique)] == list(range(500))
    (folder / "c.json.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 100)[:30])
    wrong = pytest.raises(ConnectorError, match=r"c.json.gz, record \d+: .*ended before")
    with weir.task(unique, said) as running, wrong:
        running.steps()


def test_a_runner_that_was_frozen_writes_no_file_beside_the_one_that_took_its_place(
    weir: Weir, folder: Path, unique: str
) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", b'{"n": 0}')])
    with weir.task(unique, sink(unique, folder, max_age="1h", max_records=2)) as frozen:
        frozen.steps()
        weir.fill(unique, [(b"k", b'{"n": 1}')])
        with weir.task(unique, sink(unique, folder)) as running:
            running.until(lambda: len(written(folder)) == 2)
        with pytest.raises(ConnectorError, match="another runner has written"):
            frozen.steps()
    assert [row["n"] for row in written(folder)] == [0, 1]


def test_a_value_that_fits_no_column_of_parquet_is_told_by_its_offset_or_a_dead_letter(
    weir: Weir, folder: Path, unique: str
) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", b'{"n": 0}'), (b"k", b'{"n": "many"}'), (b"k", b'{"n": 2}')])
    wrong = pytest.raises(ConnectorError, match=r"at offset 1: .*dead_letter")
    with weir.task(unique, sink(unique, folder, format="parquet")) as running, wrong:
        running.steps()
    with weir.task(unique, sink(unique, folder, format="parquet", on_error="dead_letter")) as running:
        running.until(lambda: list(folder.rglob("*.parquet")))
    (file,) = folder.rglob("*.parquet")
    assert pq.read_table(file, partitioning=None).to_pylist() == [{"n": 0}, {"n": 2}]
    ((_, letter),) = weir.messages(f"{unique}-DLQ")
    assert letter.value == b'{"n": "many"}'


def test_many_that_fit_no_column_of_parquet_are_dead_letters_after_one_look_at_each(
    weir: Weir, folder: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weir.create(unique)
    values: list[Any] = [number if number % 2 else f"text {number}" for number in range(1, 1001)]
    values[900] = 1 << 70
    weir.fill(unique, [(b"k", json.dumps({"n": value, "l": [value]}).encode()) for value in values])
    looks: list[int] = []
    look = arrow.table_of
    monkeypatch.setattr(arrow, "table_of", lambda rows, columns: (looks.append(len(rows)), look(rows, columns))[1])
    with weir.task(unique, sink(unique, folder, format="parquet", on_error="dead_letter")) as running:
        running.until(lambda: list(folder.rglob("*.parquet")))
    (file,) = folder.rglob("*.parquet")
    rows = pq.read_table(file, partitioning=None).to_pylist()
    assert [row["n"] for row in rows] == [value for value in values if isinstance(value, int) and value < 1 << 70]
    letters = [json.loads(bytes(letter.value or b""))["n"] for _, letter in weir.messages(f"{unique}-DLQ")]
    assert letters == [value for value in values if isinstance(value, str) or value == 1 << 70]
    assert len(looks) <= 3


def test_small_files_are_listed_once_and_come_many_in_one_transaction(
    weir: Weir, folder: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        (folder / f"{number:03d}.json").write_text(f'{{"n": {number}}}\n')
    listings, sent = [], []
    listed, send = Store.list, FilesSource.send
    monkeypatch.setattr(Store, "list", lambda self, below="": (listings.append(below), listed(self, below))[1])
    monkeypatch.setattr(FilesSource, "send", lambda self, *what: (sent.append(what), send(self, *what))[1])
    monkeypatch.setattr("weir.connect.connectors.files._GATHER_S", 60.0)
    with weir.task(unique, source(unique, folder, batch=100)) as running:
        running.until(lambda: len(weir.values(unique)) == 300)
        running.steps()
    assert [row["n"] for row in weir.values(unique)] == list(range(300))
    assert len(sent) <= 4
    assert len(listings) <= 5


def test_files_before_a_broken_one_come_and_those_that_went_or_change_are_not_waited_for(
    weir: Weir, folder: Path, unique: str
) -> None:
    for name in "abcd":
        (folder / f"{name}.json").write_text(f'{{"n": "{name}"}}\n')
    said = source(unique, folder, batch=1)
    with weir.task(unique, said) as running:
        running.steps(1)
        (folder / "b.json").unlink()
        (folder / "c.json").write_text("{")
        wrong = pytest.raises(ConnectorError, match=r"c\.json, record 1")
        with wrong:
            running.steps(4)
        with wrong:  # it is not passed over by who goes on all the same
            running.steps(1)
    (folder / "b.json").write_text('{"n": "b"}\n')
    with weir.task(unique, source(unique, folder)) as running, wrong:
        running.steps(4)
    assert [row["n"] for row in weir.values(unique)] == ["a", "b"]
    (folder / "c.json").unlink()
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 3)
    later = time.time() + 3600
    (folder / "e.json").write_text('{"n": "e"}\n')
    (folder / "f.json").write_text('{"n": "f"}\n')
    with weir.task(unique, said) as running:
        running.steps(1)
        os.utime(folder / "f.json", (later, later))  # it is being written
        running.steps(3)
    assert [row["n"] for row in weir.values(unique)] == ["a", "b", "d", "e"]


def test_csv_may_have_long_texts_and_names_no_column_twice(weir: Weir, folder: Path, unique: str) -> None:
    (folder / "a.csv").write_bytes(b'\xef\xbb\xbfid,text\n1,"%s\nnext"\n' % (b"x" * 200_000))
    (folder / "b.csv").write_text("id,id\n1,2\n")
    wrong = pytest.raises(ConnectorError, match=r"b.csv, record 1: its first line names a column twice")
    with weir.task(unique, source(unique, folder, format="csv")) as running, wrong:
        running.steps()
    assert [(row["id"], len(row["text"])) for row in weir.values(unique)] == [("1", 200_005)]


def test_lines_of_json_keep_their_digits_where_no_schema_says_what_they_are(
    weir: Weir, folder: Path, unique: str
) -> None:
    line = b'{"id":7, "x": 12345678901234567890.12345}'
    (folder / "a.json").write_bytes(b"\xef\xbb\xbf" + line + b'\n{"id":8, "x": NaN}\n')
    with weir.task(unique, source(unique, folder, key="id")) as running:
        running.until(lambda: len(weir.messages(unique)) == 2)
    (_, first), (_, second) = weir.messages(unique)
    assert (first.key, first.value) == (b"7", line)
    assert second.value == b'{"id": 8, "x": "NaN"}'


def test_a_bucket_that_is_not_there_is_told(
    weir: Weir, s3: S3Server, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    told = pytest.raises(ConnectorError, match=r"there is no bucket nowhere.*mend path")
    with weir.task(unique, source(unique, "s3://nowhere/x", endpoint=s3.url)) as running, told:
        running.steps()
    with weir.task(f"{unique}-new", source(unique, f"s3://{s3.bucket}/{unique}", endpoint=s3.url)) as running:
        running.steps()


def test_a_folder_that_is_not_there_is_told(weir: Weir, folder: Path, unique: str) -> None:
    told = pytest.raises(ConnectorError, match=r"there is no folder .*nowhere.*mend path")
    with weir.task(unique, source(unique, folder / "nowhere")) as running, told:
        running.steps()

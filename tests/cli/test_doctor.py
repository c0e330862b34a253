"""`weir doctor` says what is there, what is missing, and what to do."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from weir.cli import doctor as module
from weir.cli.doctor import clock, damage, disk, doctor, folder, free_port, listeners, python, running
from weir.model.diagnosis import State, install_command
from weir.model.errors import SparkSetupError
from weir.spark import spark_session as spark

pytestmark = pytest.mark.process


def by_name(*arguments: str) -> dict[str, dict[str, str]]:
    found = CliRunner().invoke(doctor, ["--json", "--url", "http://127.0.0.1:1", *arguments]).stdout
    return {check["name"]: check for check in json.loads(found)}


def test_it_names_python_java_spark_ports_and_disk(tmp_path: Path) -> None:
    found = by_name("--data", str(tmp_path))
    assert list(found) == [
        "python",
        "java",
        "spark",
        "numba",
        "port pulsar",
        "port kafka",
        "port amqp",
        "port rocketmq",
        "port http",
        "disk",
        "file descriptors",
        "data folder",
        "weir",
    ]
    assert found["spark"]["state"] == "ok"
    assert found["java"]["state"] == "ok"


def test_an_old_python_is_a_failure() -> None:
    assert python((3, 9, 1)).state is State.FAILED
    assert python((3, 12, 0)).state is State.GOOD


def test_a_port_in_use_is_a_warning_that_says_how_to_take_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = free_port("kafka", taken.getsockname()[1])
    assert found.state is State.WARNING
    assert "listeners.kafka" in found.hint
    assert free_port("kafka", 9092, "0.0.0.0:9092").state is State.GOOD, "the Weir that runs may have it"


def test_a_full_disk_is_a_failure_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(module, "disk_usage", lambda folder: full)
    assert disk(tmp_path / "not" / "there").state is State.FAILED
    assert CliRunner().invoke(doctor, ["--json"], standalone_mode=False).return_value == 1


def test_without_java_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SparkSetupError("there is no Java")

    monkeypatch.setattr(spark, "find_java", none)
    found = next(spark.checks())
    assert (found.name, found.state) == ("java", State.WARNING)
    assert install_command("spark") in found.hint


def test_without_spark_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = spark._version
    monkeypatch.setattr(spark, "_version", lambda name: None if name == "pyspark" else installed(name))
    *_, found = spark.checks()
    assert (found.name, found.state) == ("spark", State.WARNING)
    assert "pyspark" in found.found


def test_a_pandas_that_is_too_new_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_version", lambda name: "3.0.1")
    *_, found = spark.checks()
    assert found.state is State.FAILED
    assert "pandas<3" in found.hint


def test_a_weir_that_runs_is_asked_for_its_damage_its_clock_and_whether_it_is_ready() -> None:
    assert [c.state for c in damage({"weir_damaged_entries": 2.0, "weir_skipped_entries": 1.0})] == [State.WARNING]
    assert [c.state for c in damage({})] == [State.GOOD]


def test_a_weir_that_asks_nobody_who_they_are_is_told_of() -> None:
    assert [(c.name, c.state) for c in listeners({"weir_open_listeners": 2.0})] == [("listeners", State.WARNING)]
    assert list(listeners({"weir_open_listeners": 0.0})) == []
    assert [c.state for c in clock("Mon, 01 Jan 2001 00:00:00 GMT")] == [State.WARNING]
    assert list(clock("")) == []
    (found,) = running("http://127.0.0.1:1")
    assert "none runs" in found.found


def test_a_folder_that_gave_something_up_is_told(tmp_path: Path) -> None:
    (tmp_path / "accepted-losses").write_text("all of it")
    (found,) = folder(tmp_path)
    assert found.state is State.WARNING
    assert list(folder(tmp_path / "none")) == []

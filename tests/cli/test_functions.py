"""`weir functions deploy | update | list | describe | stats | stop | start | delete`, while nobody runs them."""

import json
from pathlib import Path
from typing import Any

import pytest

from weir.client import functions as rest
from weir.client.admin import Access
from weir.model.errors import RunnerBusyError
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

CODE = """
def tidy(message, context):
    context.state["n"] = 1
    return message
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.py"
    path.write_text(CODE)
    return path


def test_a_function_is_deployed_updated_stopped_and_deleted(run_here: Any, file: Path) -> None:
    done = run_here("functions", "deploy", f"{file}:tidy", "--in", "tidy-in", "--out", "tidy-out", "--set", "a=b")
    assert (done.code, done.out) == (0, "function tidy is deployed; it runs once weir functions run is up\n")
    assert "fn-tidy" in run_here("subscriptions", "list", "tidy-in").out
    (row,) = json.loads(run_here("functions", "list", "--json").out)
    assert {"tidy", 1, "waiting", "tidy-in", "tidy-out"} <= set(row.values())
    again = run_here("functions", "deploy", f"{file}:tidy", "--in", "other")
    assert (again.code, "function tidy exists already" in again.err) == (1, True)
    assert "is updated to version 2" in run_here("functions", "update", "tidy", "--parallelism", "2").out
    assert "is unchanged" in run_here("functions", "update", "tidy", str(file), "--parallelism", "2").out
    told = run_here("functions", "describe", "tidy").out
    for said in (
        "f.py:tidy",
        "option config.a",
        "option parallelism",
        "option stateful",
        "persistent://public/default/tidy-in",
    ):
        assert said in told
    assert run_here("functions", "describe", "tidy", "--code").out == CODE
    assert "waiting" in run_here("functions", "stats", "tidy").out
    assert "stops when its runner reads the change" in run_here("functions", "stop", "tidy").out
    assert "stopped" in run_here("functions", "list").out
    assert "is started" in run_here("functions", "start", "public/default/tidy").out
    assert run_here("functions", "logs", "tidy").out == ""
    run_here("functions", "update", "tidy", "--out", "")
    run_here("functions", "deploy", f"{file}:tidy", "--in", "tidy-in", "--name", "other")
    assert {row["OUTPUT"] for row in json.loads(run_here("functions", "list", "--json").out)} == {""}
    assert run_here("functions", "delete", "tidy", "other").out.count("is deleted; its output stays\n") == 2
    assert "fn-tidy" not in run_here("subscriptions", "list", "tidy-in").out
    gone = run_here("functions", "delete", "tidy")
    assert (gone.code, "there is no function tidy" in gone.err) == (1, True)
    assert run_here("functions", "delete", "tidy", "--if-exists").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{}:nope", "--in", "a"), "has no function nope"),
        (("{}:tidy",), "reads nothing"),
        (("{}:tidy", "--in", "a", "--out", "a"), "both input and output"),
        (("{}:tidy", "--in", "a", "--log-topic", "a"), "both input and output"),
        (("{}:tidy", "--in", "a", "--dead-letter-topic", "b//c"), "is not a namespace name"),
        (("{}:tidy", "--in", "a", "--parallelism", "0"), "parallelism is 0"),
        (("{}:tidy", "--in", "a", "--retries", "soon"), "is not a wait"),
        (("{}:tidy", "--in", "a", "--set", "x"), "is not a pair"),
        (("nowhere.py:f", "--in", "a"), "cannot be read"),
        (("{}:tidy", "--in", "nobody/there/a"), "there is no namespace nobody/there"),
        (("{}:tidy", "--in", "a", "--out", "nobody/there/b"), "there is no namespace nobody/there"),
        (("{}:tidy", "--in", "a", "--name", "süß"), "functions cannot use the name 'süß-logs'"),
        (("{}:tidy", "--in", "süß"), "functions cannot use the name 'süß'"),
        (("{}:tidy", "--in", "a-partition-1"), "is not a whole, persistent topic"),
        (("{}:tidy", "--in", "non-persistent://public/default/a"), "is not a whole, persistent topic"),
    ],
)
def test_what_cannot_be_deployed_is_told_before_anything_is_made(
    run_here: Any, file: Path, arguments: tuple[str, ...], said: str, weir_up: UpProcess
) -> None:
    done = run_here("functions", "deploy", *(one.format(file) for one in arguments))
    assert done.code in (1, 2)
    assert said in done.err
    assert json.loads(run_here("functions", "list", "--json").out) == []


def test_a_topic_that_is_named_twice_is_read_once(run_here: Any, file: Path) -> None:
    run_here("functions", "deploy", f"{file}:tidy", "--in", "a", "--in", "public/default/a", "--name", "twice")
    assert [row["INPUTS"] for row in json.loads(run_here("functions", "list", "--json").out)] == ["a"]
    run_here("functions", "delete", "twice")


def test_an_update_does_not_move_a_function_to_spark(run_here: Any, file: Path) -> None:
    run_here("functions", "deploy", f"{file}:tidy", "--in", "tidy-in", "--name", "tidy2")
    done = run_here("functions", "update", "tidy2", "--on", "spark")
    assert "deploy it under another name" in done.err
    run_here("functions", "delete", "tidy2")


def test_a_second_runner_is_told_who_runs_them_and_once_what_to_do(weir_up: UpProcess) -> None:
    access = Access(weir_up.http_url)
    rest.take_runner(access, "first", "here", 1_000)
    with pytest.raises(RunnerBusyError) as busy:
        rest.take_runner(access, "second", "there", 1_000)
    assert str(busy.value) == "the functions are run by here (one is enough; stop it first to run them here)"
    rest.release_runner(access, "first")


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import nosuchlib\ndef neat(m): return m", "No module named 'nosuchlib'"),
        ("from json import nosuchname\ndef neat(m): return m", "cannot import name 'nosuchname' from 'json'"),
        ("print('hello')\nimport beside\ndef neat(m): return m", "No module named 'beside'"),
    ],
)
def test_a_function_whose_import_fails_is_refused_and_nothing_is_stored(
    run_here: Any, tmp_path: Path, code: str, missing: str
) -> None:
    (tmp_path / "beside.py").write_text("")  # only the file itself is deployed
    bad = tmp_path / "bad.py"
    bad.write_text(code)
    refused = run_here("functions", "deploy", f"{bad}:neat", "--in", "neat-in")
    assert refused.code == 1
    assert missing in refused.err
    assert "bad.py, line" in refused.err
    assert "neat" not in run_here("functions", "list", "--json").out
    assert "neat-in" not in run_here("topics", "list").out


def test_an_update_whose_import_fails_is_refused_and_an_optional_import_is_not(
    run_here: Any, tmp_path: Path
) -> None:
    path = tmp_path / "optional.py"
    path.write_text(
        "try:\n    import nosuchlib\nexcept ImportError:\n    pass\nimport os\ndef deft(m): return m\n"
    )
    assert run_here("functions", "deploy", f"{path}:deft", "--in", "deft-in").code == 0
    path.write_text("import os\nSETTING = os.environ['ONLY_THE_RUNNER_HAS_THIS']\ndef deft(m): return m\n")
    assert "is updated to version 2" in run_here("functions", "update", "deft", str(path)).out
    path.write_text("import nosuchlib\ndef deft(m): return m\n")
    refused = run_here("functions", "update", "deft", str(path))
    assert (refused.code, "nosuchlib" in refused.err) == (1, True)
    (row,) = [one for one in json.loads(run_here("functions", "list", "--json").out) if "deft" in one.values()]
    assert 2 in row.values()

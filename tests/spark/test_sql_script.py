"""`weir sql` from scripts, and `weir streams`: what they print, and their exit codes; without Spark."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weir.client import streams as rest
from weir.client.admin import Access
from weir.model.definitions import StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.testing.processes.up import environment

from .conftest import Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def command(topics: Topics, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "weir.cli.main", *arguments, "--url", topics.up.http_url]


def weir(topics: Topics, *arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(topics, *arguments),
        input=script,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )


def test_if_one_statement_of_a_script_cannot_be_done_none_is(topics: Topics) -> None:
    topics.create(name="script_one")
    script = "SHOW TABLES LIKE 'script_*';\n\nDESCRIBE script_on;\nSHOW STREAMS;"
    done = weir(topics, "sql", "--json", "-f", "-", script=script)
    assert (done.returncode, done.stdout) == (1, "")
    said = "statement 2, line 3: there is no topic script_on; nothing was done (did you mean script_one?)"
    assert done.stderr == f"weir: {said}\n"
    done = weir(topics, "sql", "-e", "SHOW TABLES", "-e", "CREATE STREAM x AS")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the query is missing" in done.stderr


def test_a_script_that_is_done_prints_one_document_for_each_statement(topics: Topics, tmp_path: Path) -> None:
    topics.create(name="printed_one")
    file = tmp_path / "script.sql"
    file.write_text("SHOW TABLES LIKE 'printed_*'; -- a comment; and more\nDESCRIBE printed_one;")
    done = weir(topics, "sql", "--json", "-f", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    decoder = json.JSONDecoder()
    first, at = decoder.raw_decode(done.stdout)
    second, _ = decoder.raw_decode(done.stdout, at + 1)
    assert first == [{"table": "printed_one"}]
    assert second[0] == {"column": "value", "type": "string", "shown by *": "yes"}
    assert {"column": "__timestamp", "type": "timestamp", "shown by *": "no, by its name"} in second
    assert weir(topics, "sql", "-f", str(tmp_path / "none.sql")).returncode == 2


def _interruptible() -> None:
    """Whoever runs the tests in the background has them ignore interrupts, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_streams_are_watched(topics: Topics) -> None:
    name, access = TopicName.parse("watched"), Access(topics.up.http_url)
    made = rest.put_stream(access, name, sql="SELECT 1", sources=[], options={}, wanted=Wanted.RUNNING)
    told = StreamProgress(made.stream.id, "running", 12.5, 40, 3, 2, 512, 7, 90)
    rest.report(access, name, told)
    rest.take_runner(access, "me", "here", 600_000)
    watching = subprocess.Popen(
        command(topics, "streams", "list", "--watch", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
        preexec_fn=_interruptible,  # noqa: PLW1509 (one call between fork and exec)
    )
    try:
        assert watching.stdout is not None
        (line,) = [one for one in json.loads(watching.stdout.readline()) if one["stream"] == "watched"]
        assert line == {
            "stream": "watched",
            "state": "running",
            "rows/s": 12.5,
            "rows": 40,
            "lag": 3,
            "state rows": 2,
            "state bytes": 512,
            "last batch": 7,
            "failures": 0,
            "next try": "",
            "error": "",
        }
        rest.report(access, name, StreamProgress(made.stream.id, "failed", rows=41, error="it broke"))
        while line["state"] != "failed":
            (line,) = [one for one in json.loads(watching.stdout.readline()) if one["stream"] == "watched"]
        assert (line["rows"], line["error"]) == (41, "it broke")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(120) == 0
    finally:
        watching.kill()
        watching.wait()
        rest.release_runner(access, "me")
        rest.drop_stream(access, name)
    done = weir(topics, "streams", "describe", "watched")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no stream" in done.stderr

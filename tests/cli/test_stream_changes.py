"""`weir streams pause | resume | drop`, without Spark: the definition is changed, the runner's word awaited."""

import json
import subprocess
import sys
from typing import Any

import pytest

from weir.cli.spark_session import NEEDED
from weir.cli.streams import names_of, short_name
from weir.client import streams as rest
from weir.client.admin import Access
from weir.client.streams import Defined, state_of
from weir.model.definitions import SqlStream, StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.testing.processes.up import UpProcess, environment

NAME = TopicName.parse("changed")


@pytest.mark.parametrize(
    ("topic", "short", "long"),
    [
        ("a", "a", "public.default.a"),
        ("public/sales/a", "sales.a", "public.sales.a"),
        ("acme/sales/a-b", "acme.sales.a-b", "acme.sales.`a-b`"),
    ],
)
def test_a_stream_is_named_as_a_table_or_as_a_topic(topic: str, short: str, long: str) -> None:
    name = TopicName.parse(topic)
    assert short_name(name) == short
    assert {short, long, str(name)} <= names_of(name)


def test_a_stream_that_shall_run_and_has_no_worker_says_so() -> None:
    def state(wanted: Wanted, reported: str | None, *, has_worker: bool) -> str:
        progress = None if reported is None else StreamProgress("1", reported)
        return state_of(Defined(SqlStream(NAME, "1", "", wanted=wanted), progress), has_worker=has_worker)

    for reported in ("running", "failed", "starting", None):
        assert state(Wanted.RUNNING, reported, has_worker=False) == "no worker"
    assert state(Wanted.PAUSED, "running", has_worker=False) == "paused"
    assert state(Wanted.RUNNING, "failed", has_worker=True) == "failed"
    assert state(Wanted.RUNNING, None, has_worker=True) == "running (not started)"
    assert state(Wanted.PAUSED, None, has_worker=False) == "paused (not started)"


@pytest.fixture
def defined(weir_up: UpProcess) -> Access:
    access = Access(weir_up.http_url)
    rest.put_stream(access, NAME, sql="SELECT 1", sources=[], options={}, wanted=Wanted.RUNNING)
    return access


@pytest.mark.process
def test_a_stream_is_paused_resumed_and_dropped(run_here: Any, defined: Access) -> None:
    done = run_here("streams", "pause", "changed")
    assert (done.code, done.out) == (0, "stream changed pauses when its runner reads the change\n")
    assert rest.get_stream(defined, NAME).stream.wanted is Wanted.PAUSED
    assert "it runs once weir streams run is up" in run_here("streams", "resume", "public.default.changed").out
    assert rest.get_stream(defined, NAME).stream.wanted is Wanted.RUNNING
    assert run_here("streams", "drop", "changed").out == "stream changed is dropped; its topic stays\n"
    assert rest.find_stream(defined, NAME) is None
    done = run_here("streams", "drop", "changed")
    assert (done.code, done.out) == (1, "")
    assert "there is no stream changed" in done.err
    assert run_here("streams", "drop", "changed", "--if-exists").code == 0


@pytest.mark.process
def test_the_runners_word_is_awaited(run_here: Any, defined: Access) -> None:
    stream = rest.get_stream(defined, NAME).stream
    rest.take_runner(defined, "r", "here", 60_000)
    try:
        rest.report(defined, NAME, StreamProgress(stream.id, "paused"))
        assert run_here("streams", "pause", "changed").out == "stream changed is paused\n"
        rest.report(defined, NAME, StreamProgress(stream.id, "running"))
        assert run_here("streams", "resume", "changed").out == "stream changed runs\n"
    finally:
        rest.release_runner(defined, "r")
        rest.drop_stream(defined, NAME)


@pytest.mark.process
def test_streams_are_listed_and_described_where_spark_is_not_installed(
    weir_up: UpProcess, defined: Access
) -> None:
    script = f"""
import sys
sys.modules.update(dict.fromkeys({NEEDED!r}, None))
from weir.cli.main import main
main(sys.argv[1:])
"""

    def said(*arguments: str) -> str:
        command = [sys.executable, "-c", script, "streams", *arguments, "--url", weir_up.http_url]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment()).stdout

    stream = rest.get_stream(defined, NAME).stream
    rest.report(defined, NAME, StreamProgress(stream.id, "failed", error="boom", failures=3))
    try:
        (listed,) = [one for one in json.loads(said("list", "-o", "json")) if one["stream"] == "changed"]
        assert (listed["failures"], listed["error"]) == (3, "boom")
        assert "SELECT 1" in said("describe", "public.default.changed")
    finally:
        rest.drop_stream(defined, NAME)

"""`weir produce` and `weir consume` as processes, over the wire."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from weir.testing.processes.up import UpProcess, environment

pytestmark = pytest.mark.process


def test_what_is_produced_is_consumed(weir: Any) -> None:
    done = weir("produce", "basic", "hello", "wörld", "--key", "k", "--property", "a=b")
    assert (done.code, done.out, done.err) == (0, "2 messages stored in basic\n", "")
    done = weir("consume", "basic", "-n", "2")
    assert (done.code, done.out, done.err) == (0, "hello\nwörld\n", "")
    done = weir("consume", "basic", "-n", "2", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert (first["payload"], first["key"], first["headers"]) == ("hello", "k", {"a": "b"})
    assert (first["topic"], first["partition"], first["offset"]) == ("basic", None, 0)
    assert second["payload"] == "wörld"


def test_lines_of_standard_input_are_messages(weir: Any) -> None:
    lines = [f"line {at}" for at in range(3000)]
    done = weir("produce", "lines", stdin="\r\n".join(lines).encode())
    assert done.out == "3000 messages stored in lines\n"
    assert weir("consume", "lines", "--wait", "500ms").out.splitlines() == lines


def test_a_subscription_goes_on_where_it_was(weir: Any) -> None:
    done = weir("produce", "progress", "-n", "10", "x", "--json")
    assert len(set(json.loads(done.out)["ids"])) == 10
    assert weir("consume", "progress", "-s", "s", "-n", "4").out == "x\n" * 4
    assert weir("consume", "progress", "-s", "s", "--no-ack", "--wait", "500ms").out == "x\n" * 6
    assert weir("consume", "progress", "-s", "s", "--wait", "500ms").out == "x\n" * 6
    assert weir("consume", "progress", "-s", "s", "--wait", "200ms").out == ""


def test_bytes_that_are_no_text_are_shown_safely(weir: Any) -> None:
    weir("produce", "binary", stdin=b"\xff\x00\x1b[31m\n")
    assert weir("consume", "binary", "-n", "1").out == "\\xff\\x00\\x1b[31m\n"
    shown = json.loads(weir("consume", "binary", "-n", "1", "--json").out)
    assert shown["payload_base64"] == "/wAbWzMxbQ=="


def test_a_delayed_message_waits_for_its_moment(weir: Any) -> None:
    began = time.time()
    weir("produce", "later", "now")
    weir("produce", "later", "then", "--deliver-in", "1500ms")
    shown = weir("consume", "later", "-s", "s", "--type", "shared", "-n", "2", "--json")
    assert [json.loads(line)["payload"] for line in shown.out.splitlines()] == ["now", "then"]
    assert time.time() >= began + 1.5


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["consume", "nothing-here"], 1, "nothing-here"),
        (["consume", "a/b"], 1, "persistent://tenant/namespace/topic"),
        (["produce", "t", "x", "--property", "p"], 2, "name=value"),
        (["produce", "t", "x", "--deliver-in", "soon"], 2, "10s"),
        (["produce", "t", "x", "--deliver-in", "1s", "--deliver-at", "5"], 2, "exclude"),
        (["produce", "t", "-n", "5"], 2, "MESSAGE"),
        (["consume", "t", "--url", "nonsense"], 2, "http://host:8080"),
        (["produce", "t", "x", "--url", "pulsar://127.0.0.1:1"], 1, "start it with `weir up`, or name another"),
        (["produce", "t", "x", "--token", "file:/no/such/file"], 2, "/no/such/file"),
        (["topics", "list"], 2, "http://host:8080"),
        (["consume"], 2, "TOPIC"),
    ],
)
def test_an_error_is_one_line_with_what_to_do(arguments: list[str], code: int, says: str, weir: Any) -> None:
    done = weir(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert says in done.err
    assert "Traceback" not in done.err
    if done.err.startswith("weir: "):
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "produce",
        "consume",
        "peek",
        "topics",
        "tenants",
        "namespaces",
        "subscriptions",
        "schemas",
        "token",
        "config",
    ],
)
def test_every_command_has_help_with_examples(command: str, weir: Any) -> None:
    done = weir(command, "--help")
    assert done.code == 0
    assert f"weir {command}" in done.out.partition("Examples:")[2]


READS = [
    ["consume"],
    ["consume", "-n", "1", "--wait", "1s"],
    ["consume", "-s", "sub", "-n", "1", "--wait", "1s"],
    ["consume", "--offset", "3"],
    ["consume", "--from", "-1h", "--json"],
    ["peek"],
    ["topics", "stats"],
    ["subscriptions", "list"],
    ["messages", "find", "--key", "k"],
]


@pytest.mark.parametrize("by", ["http", "pulsar"])
def test_reading_a_topic_that_does_not_exist_creates_nothing(weir: Any, weir_up: UpProcess, by: str) -> None:
    url = weir_up.http_url if by == "http" else weir_up.pulsar_url
    for command in READS if by == "http" else READS[:3]:
        done = weir(*command, "missing", url=url)
        assert (done.code, done.out) == (1, ""), done
        assert done.err.endswith("weir: there is no topic missing (create it with: weir topics create missing)\n")
    assert "missing" not in weir("topics", "list", url=weir_up.http_url).out


def test_following_waits_for_a_topic_and_prints_all_of_it(weir_up: UpProcess) -> None:
    command = [
        sys.executable,
        "-m",
        "weir.cli.main",
        "consume",
        "not-yet",
        "--follow",
        "--from",
        "latest",
        "-n",
        "2",
    ]
    variables = environment() | {"WEIR_URL": weir_up.http_url}
    pipe = subprocess.PIPE
    following = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=variables, text=True)
    try:
        assert following.stderr is not None
        assert following.stderr.readline() == "topic not-yet does not exist yet; waiting for it\n"
        sent = [sys.executable, "-m", "weir.cli.main", "produce", "not-yet", "one", "two"]
        subprocess.run(sent, env=variables, check=True, capture_output=True)
        assert following.communicate(timeout=60)[0] == "one\ntwo\n"
    finally:
        following.kill()
        following.wait()


def test_an_offset_beyond_the_end_is_an_error_that_names_the_valid_ones(weir: Any, weir_up: UpProcess) -> None:
    weir("produce", "short", "a", "b", "c")
    for more in ([], ["--follow"], ["-n", "1"]):
        done = weir("consume", "short", "--offset", "99999", *more, url=weir_up.http_url)
        assert (done.code, done.out) == (2, "")
        assert "offset 99999 is beyond the end of short: its offsets are 0 to 2" in done.err
        assert "--offset 3 --follow waits for it" in done.err
    done = weir("consume", "short", "--offset", "3", "--wait", "200ms", url=weir_up.http_url)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert weir("consume", "short", "--offset", "2", url=weir_up.http_url).out == "c\n"
    weir("topics", "create", "parted", "-p", "2", url=weir_up.http_url)
    done = weir("consume", "parted", "--offset", "1", url=weir_up.http_url)
    assert "offset 1 is beyond the end of any of the 2 partitions of parted: it has no messages" in done.err


def test_wide_output_has_a_head_and_columns(weir: Any) -> None:
    weir("produce", "columns", "hello world", "--key", "k", "-H", "a=b")
    weir("produce", "columns", "second")
    head, first, second = weir("consume", "columns", "-o", "wide").out.splitlines()
    names = head.split()
    assert names == ["TOPIC", "PARTITION", "OFFSET", "ID", "PUBLISHED", "KEY", "HEADERS", "PAYLOAD"]
    for name, cell in (
        ("TOPIC", "columns "),
        ("PARTITION", "- "),
        ("KEY", "k "),
        ("HEADERS", "a=b "),
        ("PAYLOAD", "hello world"),
    ):
        assert first[head.index(name) :].startswith(cell)
    assert second[head.index("OFFSET") :].startswith("1 ")
    assert second[head.index("KEY") :].startswith("- ")
    assert weir("consume", "empty-columns", "-o", "wide").out == ""

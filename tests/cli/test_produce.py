"""`weir produce` and `weir consume` as processes, over the wire."""

import json
import time
from typing import Any

import pytest

pytestmark = pytest.mark.process


def test_what_is_produced_is_consumed(weir: Any) -> None:
    done = weir("produce", "basic", "hello", "wörld", "--key", "k", "--property", "a=b")
    assert (done.code, done.out, done.err) == (0, "2 messages stored in basic\n", "")
    done = weir("consume", "basic", "-n", "2")
    assert (done.code, done.out, done.err) == (0, "hello\nwörld\n", "")
    done = weir("consume", "basic", "-n", "2", "--json")
    first, second = map(json.loads, done.out.splitlines())
    assert (first["payload"], first["key"], first["properties"]) == ("hello", "k", {"a": "b"})
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

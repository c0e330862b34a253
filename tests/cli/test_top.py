"""`weir top`: what two scrapes say, and the command on a broker that is used."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from weir.cli.output import cut_middle
from weir.cli.top import bars, duration, overview, read_scrape, screen
from weir.testing.processes.up import UpProcess, environment

BEFORE = """\
# HELP weir_up_seconds Since the broker started.
# TYPE weir_up_seconds gauge
weir_up_seconds 90000
weir_topic_published_messages_total{topic="a"} 10
weir_topic_delivered_messages_total{topic="a"} 0
process_cpu_seconds_total 5
"""
NOW = """\
weir_up_seconds 90002
weir_topics 3
weir_topics_loaded 2
process_cpu_seconds_total 6
process_resident_memory_bytes 104857600
weir_disk_free_bytes 1073741824
weir_gateway_connections{protocol="kafka"} 2
weir_gateway_connections{protocol="amqp"} 1
weir_stream_lag_messages{stream="s"} 7
weir_topic_published_messages_total{topic="a"} 30
weir_topic_published_messages_total{topic="b \\"quoted\\" \\\\"} 4
weir_topic_end_offset{topic="a"} 30
weir_topic_end_offset{topic="b \\"quoted\\" \\\\"} 4
weir_subscription_backlog_messages{topic="a",subscription="s"} 5
weir_subscription_backlog_messages{topic="a",subscription="t"} 6
"""


def test_rates_are_what_happened_between_two_scrapes() -> None:
    seen = overview(read_scrape(BEFORE, 100.0), read_scrape(NOW, 102.0))
    assert (seen.messages_in, seen.backlog, seen.cpu) == (12.0, 11, 0.5)
    assert (seen.topics, seen.loaded, seen.memory_bytes, seen.disk_free_bytes) == (3, 2, 100 << 20, 1 << 30)
    assert (seen.connections, seen.streams) == ({"amqp": 1, "kafka": 2}, {"s": 7})
    assert [(line.topic, line.messages_in, line.backlog) for line in seen.busiest] == [
        ("a", 10.0, 11),
        ('b "quoted" \\', 2.0, 0),
    ]


def test_a_broker_that_began_anew_has_no_negative_rates() -> None:
    seen = overview(read_scrape(NOW, 100.0), read_scrape(BEFORE, 102.0))
    assert (seen.messages_in, seen.cpu) == (0.0, 0.0)


@pytest.mark.parametrize(("sort", "first"), [("in", "a"), ("backlog", "a"), ("name", "a"), ("size", "a")])
def test_topics_come_in_the_order_that_was_asked_for(sort: str, first: str) -> None:
    seen = overview(read_scrape(BEFORE, 0.0), read_scrape(NOW, 1.0), sort=sort, most=1)
    assert [line.topic for line in seen.busiest] == [first]


@pytest.mark.parametrize("width", [80, 200])
def test_a_screen_fits_the_terminal_whatever_topics_are_called(width: int) -> None:
    long = NOW.replace('topic="a"', f'topic="persistent://public/default/{"x" * 300}[red]"')
    console = Console(width=width, height=24, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(screen(overview(read_scrape(BEFORE, 0.0), read_scrape(long, 1.0)), [1.0, 2.0], "http://h:1"))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    (named,) = [line for line in lines if "xxx" in line]
    assert re.match(r"public/default/x+…x+\[red\] ", named)
    assert any("kafka 2" in line for line in lines)


@pytest.mark.parametrize(
    ("width", "shown"),
    [(11, "orders-2026"), (10, "orde…-2026"), (5, "or…26"), (2, "…6"), (1, "…")],
)
def test_the_middle_of_a_long_name_is_left_out(width: int, shown: str) -> None:
    assert cut_middle("orders-2026", width) == shown
    assert cell_len(cut_middle("日本語の名前", width)) <= width or width < len("…")


def test_spans_and_histories_are_short() -> None:
    assert (duration(59), duration(90_061)) == ("00:00:59", "1d 01:01:01")
    assert bars([0.0, 5.0, 10.0]) == " ▄█"


@pytest.mark.process
def test_it_shows_a_broker_that_is_used(weir: Any, weir_up: Any) -> None:
    weir("produce", "watched", "one", "two")
    once = ("top", "--url", weir_up.http_url, "--count", "1", "--interval", "0.1")
    seen = json.loads(weir(*once, "--json").out)
    (line,) = [each for each in seen["busiest"] if each["topic"].endswith("/watched")]
    assert line["stored_bytes"] > 0
    assert "watched" in weir(*once).out


@pytest.mark.process
def test_the_key_q_ends_it_and_leaves_the_terminal_as_it_was(weir_up: UpProcess) -> None:
    ours, its = pty.openpty()
    before = termios.tcgetattr(its)
    command = [sys.executable, "-m", "weir.cli.main", "top", "--url", weir_up.http_url, "--interval", "60"]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment())
    try:
        said = b""
        while b"connecting to" not in said:
            said += os.read(ours, 4096)
        os.write(ours, b"xq")
        assert process.wait(60) == 0
        assert termios.tcgetattr(its) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)

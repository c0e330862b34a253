"""A pipeline from its init to its sink, twice, with real Spark Connect: each message once, lineage told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Reads, Topics
from .sql_session import make_orders

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def _weir(folder: Path, url: str, *words: str) -> str:
    command = [sys.executable, "-m", "weir.cli.main", "pipeline", *words]
    if words[0] == "run":
        command += ["--url", url]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pipeline_takes_each_message_into_its_sink_once(topics: Topics, read: Reads, tmp_path: Path) -> None:
    url = topics.up.http_url
    make_orders(topics, "pipe_orders", count=6)
    _weir(tmp_path, url, "init", "shop", "--source", "pipe_orders", "--sink", "pipe_clean")
    _weir(tmp_path, url, "run", "-f", "shop", "--once")
    make_orders(topics, "pipe_orders", first=6, count=4)
    _weir(tmp_path, url, "run", "-f", "shop", "--once")
    assert sorted(json.loads(one)["id"] for one in read.values("pipe_clean")) == list(range(10))
    shown = json.loads(_weir(tmp_path, url, "status", "-f", "shop", "--json"))
    assert (shown["state"], shown["updates"]) == ("done", 1)
    told = [
        json.loads(line) for line in (tmp_path / "shop" / "storage" / "lineage.jsonl").read_text().splitlines()
    ]
    kinds = [one["eventType"] for one in told if one["job"]["name"] == "shop"]
    assert kinds == ["START", "COMPLETE", "START", "COMPLETE"]

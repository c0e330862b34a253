"""`weir up --streams`: the runner's process is kept alive beside the node, and ends before it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from weir.broker.security.tokens import TokenVerifier, load_secret
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.server import runner_processes as streams_runner
from weir.server.addresses import Address
from weir.server.config.load import load
from weir.server.config.tree import Config
from weir.server.runner_processes import WithRunner, runner_spec, runner_token, with_streams
from weir.server.supervisor import ChildSpec

pytestmark = pytest.mark.process

HTTP = {"http": Address("0.0.0.0", 8080)}
SECRET = "base64:" + "c2VjcmV0" * 8


def config(*assignments: str) -> Config:
    return load(assignments=assignments, environment={}).config


class Node:
    def __init__(self, story: list[str]) -> None:
        self._story = story
        self.addresses = HTTP

    async def start(self) -> None:
        self._story.append("node starts")

    async def close(self) -> None:
        self._story.append("node ends")

    async def failed(self) -> None:
        await asyncio.Event().wait()


def test_the_runner_is_told_where_the_broker_is_and_its_token_by_the_environment() -> None:
    spec = runner_spec(config("data=/var/lib/weir", "streams.memory=2g"), HTTP, "s3cret")
    assert spec.command[-11:] == [
        *("streams", "run", "--standby", "--url", "http://127.0.0.1:8080", "--master", "local[*]"),
        *("--memory", "2g", "--checkpoints", "/var/lib/weir/sql"),
    ]
    assert spec.environment == {"WEIR_TOKEN": "s3cret"}
    assert "s3cret" not in " ".join(spec.command)
    tls = runner_spec(config("streams.url=https://weir:8443", "streams.ca=/ca.pem"), {}, None)
    assert "https://weir:8443" in tls.command
    assert tls.command[-2:] == ["--ca", "/ca.pem"]
    with pytest.raises(ConfigError, match=r"listeners\.http"):
        runner_spec(config(), {}, None)


def test_a_setting_is_as_good_as_the_option() -> None:
    async def main(runtime: Runtime) -> None:
        node = Node([])
        assert with_streams(node, runtime, config(), streams=False) is node
        assert isinstance(with_streams(node, runtime, config(), streams=True), WithRunner)
        assert isinstance(with_streams(node, runtime, config("streams.run=true"), streams=False), WithRunner)

    run(main)


def test_where_tokens_are_needed_the_runner_gets_one_of_a_superuser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TOKEN", raising=False)

    async def token(runtime: Runtime, *assignments: str) -> str | None:
        told = config(*assignments)
        return await runner_token(told, told.streams, runtime, runs="streams", section="streams")

    async def main(runtime: Runtime) -> None:
        assert await token(runtime) is None
        needed = ("auth.authenticate=true", f"auth.token_secret={SECRET}", "auth.superusers=boss,admin")
        made = await token(runtime, *needed)
        assert made is not None
        assert (
            TokenVerifier(load_secret(b"secret" * 8)).verify(made, now_ms=runtime.clock.wall_ms()).role == "boss"
        )
        assert await token(runtime, *needed, "streams.token=file:/t") == "file:/t"
        with pytest.raises(ConfigError, match="needs a token of a superuser"):
            await token(runtime, "auth.authenticate=true", "auth.token_public_key=file:/k")

    run(main)


def test_a_runner_that_dies_is_started_again_and_ends_before_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    story: list[str] = []
    ends = tmp_path / "ends"
    program = (
        "import signal, pathlib, time\n"
        f"def end(*_): pathlib.Path({str(ends)!r}).touch(); raise SystemExit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(tmp_path)!r}, 'began').touch()\n"
        "while True: time.sleep(60)\n"
    )

    def spec(*_: object) -> ChildSpec:
        ready = tmp_path / "began"
        return ChildSpec("streams", "streams", [sys.executable, "-c", program], ready, first_pause_s=0.01)

    monkeypatch.setattr(streams_runner, "runner_spec", spec)
    monkeypatch.setattr(streams_runner, "need_spark", lambda: story.append("Spark is there"))

    async def main(runtime: Runtime) -> None:
        node = Node(story)
        both = with_streams(node, runtime, config(), streams=True)
        assert isinstance(both, WithRunner)
        await both.start()
        child = both.child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        while not (child.restarts and await child.serves()):
            await runtime.clock.sleep(0.01)
        assert not ends.exists()
        await both.close()
        assert ends.exists()
        assert not child.running

    run(main)
    assert story == ["Spark is there", "node starts", "node ends"]

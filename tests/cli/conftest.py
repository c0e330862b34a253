"""One `weir up` for all tests of commands, and a way to run them as a shell would."""

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from weir.cli.main import main
from weir.testing.processes.up import UpProcess, environment


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


def _without_server(said: str) -> str:
    """What a command says beside the server's address, which commands that change something name."""
    return re.sub(r"^server: \S+\n", "", said, count=1)


Weir = Callable[..., Outcome]


@pytest.fixture(scope="session")
def weir_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    up = UpProcess(tmp_path_factory.mktemp("weir-up"))
    up.start()
    yield up
    up.close()


@pytest.fixture
def weir(weir_up: UpProcess) -> Weir:
    """Runs `weir ...` against it, as a process of its own."""

    def run(*arguments: str, stdin: bytes = b"", url: str | None = None) -> Outcome:
        variables = environment() | {"WEIR_URL": weir_up.pulsar_url if url is None else url, "COLUMNS": "200"}
        command = [sys.executable, "-m", "weir.cli.main", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, env=variables, timeout=120, check=False)
        return Outcome(done.returncode, done.stdout.decode(), _without_server(done.stderr.decode()))

    return run


@pytest.fixture
def run_here(
    weir_up: UpProcess, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs `weir ...` against it in this process, which costs no start of an interpreter."""
    monkeypatch.setenv("WEIR_URL", weir_up.http_url)

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        sys.stdout.flush()
        found = capfdbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, found.out.decode("utf-8", "replace"), _without_server(found.err.decode()))

    return run

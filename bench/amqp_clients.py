"""`python -m bench.amqp_clients NAME --server H:P`: clients of RabbitMQ in other languages.

Names: java (RabbitMQ's client, by Maven), node (amqplib, by npm), go (amqp091-go, by go). Each has a program that
says `ok` for every step. What they need is fetched once and kept, with what is compiled, under the cache folder.
Ends with 0 if all steps are right, with 1 if one is not, and with 77 if the client is not to be had here.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from bench.maven import Artifacts

MISSING = 77
_PROGRAMS = Path(__file__).parent / "amqp_programs"
_TIMEOUT_S = 120
_FETCH_TIMEOUT_S = 240
_JAVA = Artifacts("amqp-client-5.26.0", ("com.rabbitmq:amqp-client:5.26.0",))
_NODE = "amqplib@2.3.1"
_GO = "github.com/rabbitmq/amqp091-go@v1.16.0"


class MissingError(Exception):
    """A client that cannot run here."""


def _fetched(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as why:
        raise MissingError(f"{command[0]} did not do it: {why}") from why
    if done.returncode:
        raise MissingError(f"{' '.join(command)}: {done.stderr[-500:]}")


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise MissingError(f"there is no {program} here")


def _cache(name: str) -> Path:
    folder = Path(os.environ.get("WEIR_BENCH_CACHE", Path.home() / ".cache" / "weir-bench")) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _java() -> list[str]:
    _needs("javac")
    if why := _JAVA.missing(patience_s=_FETCH_TIMEOUT_S):
        raise MissingError(why)
    source, made = _PROGRAMS / "Check.java", _JAVA.cache / "Check.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        _fetched(["javac", "-cp", _JAVA.classpath, "-d", str(_JAVA.cache), str(source)], _PROGRAMS)
    small = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", *small, "-cp", f"{_JAVA.classpath}:{_JAVA.cache}", "Check"]


def _node() -> list[str]:
    _needs("node", "npm")
    folder = _cache(_NODE.replace("@", "-"))
    if not (folder / "node_modules" / "amqplib").exists():
        _fetched(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), _NODE], folder)
    shutil.copy(_PROGRAMS / "check.js", folder / "check.js")
    return ["node", str(folder / "check.js")]


def _go() -> list[str]:
    _needs("go")
    folder = _cache("amqp091-go-" + _GO.partition("@")[2])
    source, made = _PROGRAMS / "check.go", folder / "check"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        if not (folder / "go.mod").exists():
            _fetched(["go", "mod", "init", "check"], folder)
        shutil.copy(source, folder / "check.go")
        _fetched(["go", "get", _GO], folder)
        _fetched(["go", "build", "-o", str(made), "."], folder)
    return [str(made)]


CLIENTS: dict[str, Callable[[], list[str]]] = {"java": _java, "node": _node, "go": _go}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.amqp_clients", description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", choices=CLIENTS)
    parser.add_argument("--server", required=True, metavar="H:P")
    arguments = parser.parse_args()
    try:
        command = CLIENTS[arguments.name]()
    except MissingError as why:
        print(why)
        return MISSING
    host, _, port = arguments.server.rpartition(":")
    done = subprocess.run([*command, host, port, uuid4().hex[:8]], check=False, timeout=_TIMEOUT_S)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())

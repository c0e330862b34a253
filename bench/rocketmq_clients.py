"""`python -m bench.rocketmq_clients NAME --server H:P`: clients of RocketMQ in other languages than Python.

Names: java (rocketmq-client-java, by Maven), node (rocketmq-client-nodejs, by npm), go (rocketmq-clients/golang,
by go). Each has a program that says `ok` for every step. What they need is fetched once and kept, with what is
compiled, under the cache folder. Ends with 0 if all steps are right, with 1 if one is not, with 77 if the client
is not to be had here.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from bench.amqp_clients import MissingError, _cache, _fetched, _needs
from bench.maven import Artifacts

MISSING = 77
_PROGRAMS = Path(__file__).parent / "rocketmq_programs"
_TIMEOUT_S = 200
_FETCH_TIMEOUT_S = 240
_JAVA = Artifacts("rocketmq-client-java-5.1.0", ("org.apache.rocketmq:rocketmq-client-java:5.1.0",))
_NODE = "rocketmq-client-nodejs@1.0.8"
_GO = "github.com/apache/rocketmq-clients/golang/v5@v5.1.1"


def java(program: str = "Check", *options: str) -> list[str]:
    """How a program of Java's is started; it is compiled if it has changed."""
    _needs("javac")
    if why := _JAVA.missing(patience_s=_FETCH_TIMEOUT_S):
        raise MissingError(why)
    source, made = _PROGRAMS / f"{program}.java", _JAVA.cache / f"{program}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        _fetched(["javac", "-cp", _JAVA.classpath, "-d", str(_JAVA.cache), str(source)], _PROGRAMS)
    quiet = f"-Duser.home={_JAVA.cache}"
    return ["java", quiet, *options, "-cp", f"{_JAVA.classpath}:{_JAVA.cache}", program]


def _java() -> list[str]:
    return java("Check", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def _node() -> list[str]:
    _needs("node", "npm")
    folder = _cache(_NODE.replace("@", "-"))
    if not (folder / "node_modules" / "rocketmq-client-nodejs").exists():
        _fetched(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), _NODE], folder)
    shutil.copy(_PROGRAMS / "check.js", folder / "check.js")
    return ["node", str(folder / "check.js")]


def _go() -> list[str]:
    _needs("go")
    folder = _cache("rocketmq-clients-go-" + _GO.partition("@")[2])
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
    parser = argparse.ArgumentParser(prog="bench.rocketmq_clients", description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", choices=CLIENTS)
    parser.add_argument("--server", required=True, metavar="H:P")
    arguments = parser.parse_args()
    try:
        command = CLIENTS[arguments.name]()
    except MissingError as why:
        print(why)
        return MISSING
    done = subprocess.run([*command, arguments.server, uuid4().hex[:8]], check=False, timeout=_TIMEOUT_S)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs that use clients of other languages: fetched once, compiled, kept in the cache folder, and started."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bench.maven import Artifacts

MISSING = 77
_FETCH_TIMEOUT_S = 240
_SMALL = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class MissingError(Exception):
    """A client that cannot run here."""


@dataclass(frozen=True)
class Programs:
    """A protocol's programs: `Check.java`, `check.js` and `check.go` in a folder, which say `ok` for every
    step, and the clients that they use. `options`: of Java's, besides its size."""

    folder: Path
    java_client: Artifacts
    node_client: str
    go_client: str
    options: Sequence[str] = ()

    def java(self, program: str = "Check", *options: str) -> list[str]:
        """How a program of Java's is started; it is compiled if it has changed."""
        _needs("javac")
        client = self.java_client
        if why := client.missing(patience_s=_FETCH_TIMEOUT_S):
            raise MissingError(why)
        source, made = self.folder / f"{program}.java", client.cache / f"{program}.class"
        if _is_older(made, source):
            _fetched(["javac", "-cp", client.classpath, "-d", str(client.cache), str(source)], self.folder)
        return ["java", *self.options, *options, "-cp", f"{client.classpath}:{client.cache}", program]

    def node(self) -> list[str]:
        _needs("node", "npm")
        folder = _cache(self.node_client.replace("@", "-"))
        if not (folder / "node_modules" / self.node_client.partition("@")[0]).exists():
            _fetched(
                ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), self.node_client], folder
            )
        shutil.copy(self.folder / "check.js", folder / "check.js")
        return ["node", str(folder / "check.js")]

    def go(self) -> list[str]:
        _needs("go")
        name, _, version = self.go_client.partition("@")
        folder = _cache(f"{name.replace('/', '-')}-{version}")
        source, made = self.folder / "check.go", folder / "check"
        if _is_older(made, source):
            if not (folder / "go.mod").exists():
                _fetched(["go", "mod", "init", "check"], folder)
            shutil.copy(source, folder / "check.go")
            _fetched(["go", "get", self.go_client], folder)
            _fetched(["go", "build", "-o", str(made), "."], folder)
        return [str(made)]


def check(programs: Programs, about: str, timeout_s: float, addressed: Callable[[str], list[str]]) -> int:
    """The command line of a protocol's checks. `addressed`: how its programs take the server's address."""
    commands = {
        "java": lambda: programs.java("Check", *_SMALL),
        "node": programs.node,
        "go": programs.go,
    }
    parser = argparse.ArgumentParser(description=about.split("\n", 1)[0])
    parser.add_argument("name", choices=commands)
    parser.add_argument("--server", required=True, metavar="H:P")
    arguments = parser.parse_args()
    try:
        command = commands[arguments.name]()
    except MissingError as why:
        print(why)
        return MISSING
    command = [*command, *addressed(arguments.server), uuid4().hex[:8]]
    return 1 if subprocess.run(command, check=False, timeout=timeout_s).returncode else 0


def _is_older(made: Path, source: Path) -> bool:
    return not made.exists() or made.stat().st_mtime < source.stat().st_mtime


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

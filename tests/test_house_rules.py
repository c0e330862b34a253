"""The rules of the house hold: formatting, lint, strict types, and who may import whom."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "format", "--check", "."], id="every file is formatted"),
        pytest.param(["ruff", "check", "."], id="lint finds nothing"),
        pytest.param(["mypy"], id="types are strict and right", marks=pytest.mark.longest),
        pytest.param(["lint-imports"], id="a layer imports only what stands below it"),
    ],
)
def test_rule(command: list[str]) -> None:
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_contracts_name_every_gateway_and_every_part_of_the_broker() -> None:
    """What is added later is not left out by a list that was written before."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    independent = next(each["modules"] for each in contracts if each["type"] == "independence")
    forbidden = next(each["forbidden_modules"] for each in contracts if "broker.api alone" in each["name"])
    assert set(independent) == _parts_of("gateway")
    assert {name for name in forbidden if name.startswith("weir.broker.")} == _parts_of("broker") - {
        "weir.broker.api"
    }


def _parts_of(package: str) -> set[str]:
    folder = ROOT / "src" / "weir" / package
    return {f"weir.{package}.{path.stem}" for path in folder.iterdir() if not path.name.startswith("__")}


def test_no_file_names_a_registry_host() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "maven" + ".org", "debian" + ".org"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = [
        f"{name}: {host}"
        for name in listed.stdout.splitlines()
        if (path := ROOT / name).is_file() and path.suffix != ".png"
        for host in hosts
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert named == []


#: Arguments that limit how long a client or a broker waits for the other.
_TIME_LIMIT = re.compile(r"(timeout|patience|linger|deadline|ttl|lease|grace)\w*?_(s|seconds|ms)$|^timeout$")
_SHORTEST_S = 1.0


def test_fixtures_that_many_tests_share_have_no_time_limit_that_a_loaded_machine_misses() -> None:
    """Only the tests of a limit give it a value that is short."""
    short = [
        f"{path.relative_to(ROOT)}:{line}: {name}={value}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "sim" not in path.relative_to(ROOT).parts
        for line, name, value in _limits_of_fixtures(ast.parse(path.read_text()), whole=path.name == "conftest.py")
        if value / (1000 if name.endswith("_ms") else 1) < _SHORTEST_S
    ]
    assert not short, "\n".join(short)


def _limits_of_fixtures(module: ast.Module, *, whole: bool) -> Iterator[tuple[int, str, float]]:
    fixtures = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    for each in [module] if whole else fixtures:
        for node in ast.walk(each):
            match node:
                case ast.keyword(arg=str(name), value=ast.Constant(value=int() | float() as value)) if (
                    _TIME_LIMIT.search(name)
                ):
                    yield node.value.lineno, name, value
                case ast.Dict():
                    for key, limit in zip(node.keys, node.values, strict=True):
                        match key, limit:
                            case ast.Constant(value=str(name)), ast.Constant(value=int() | float() as value) if (
                                _TIME_LIMIT.search(name)
                            ):
                                yield limit.lineno, name, value

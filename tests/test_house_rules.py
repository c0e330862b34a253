"""The rules of the house hold: formatting, lint, strict types, and who may import whom."""

import subprocess
import sys
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

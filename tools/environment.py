"""Installs Weir with one set of extras into a virtual environment, for the Makefile.

    python3 tools/environment.py .venv demo      # or dev

It prints what it installs, how large that is, and its progress. One process at a time changes an environment; a
second one waits for it. It needs the standard library alone.
"""

import fcntl
import hashlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

#: What each set is for, its installed size, and the size of its downloads (Linux, x86-64), in megabytes.
#: tests/process/test_setup.py measures the first again.
SETS = {
    "demo": ("what `make demo` and the README need", 1490, 700),
    "dev": ("what tests and benchmarks need", 2300, 950),
}
#: Files that say what an environment holds. `dev` contains `demo`.
STAMPS = {"demo": [".installed-demo"], "dev": [".installed-demo", ".installed"]}
_INPUTS = ("pyproject.toml", "constraints.txt")
_HEARTBEAT_S = 5.0
_CHUNK = 64 * 1024
_TAIL_LINES = 40
_GOT = re.compile(r"\s*(Downloading|Using cached) (\S+?)(?:\.metadata)? \((.+)\)$")


def main() -> int:
    venv, name = Path(sys.argv[1]), sys.argv[2]
    venv.mkdir(parents=True, exist_ok=True)
    with (venv / ".lock").open("w") as lock:
        _acquire(lock, venv)
        wanted = _fingerprint()
        stamps = [venv / stamp for stamp in STAMPS[name]]
        if not all(_text(stamp) == wanted for stamp in stamps):
            purpose, size, download = SETS[name]
            print(
                f"weir: installing {purpose} into {venv}: {size / 1000:.1f} GB when complete, of which about "
                f"{download} MB are downloaded the first time. This takes minutes.",
                flush=True,
            )
            began = time.monotonic()
            failed = _create(venv) or _install(venv, name)
            if failed:
                return failed
            print(f"weir: {venv} is complete: {_size(venv):,} MB, {time.monotonic() - began:.0f} s", flush=True)
        for stamp in stamps:
            stamp.write_text(wanted)
    return 0


def _acquire(lock: IO[str], venv: Path) -> None:
    """The kernel releases the lock with the process, however it ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"weir: another make installs into {venv}; waiting until it has finished", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _fingerprint() -> str:
    """Of all that decides what is installed."""
    digest = hashlib.sha256(sys.version.encode())
    for name in _INPUTS:
        digest.update(Path(name).read_bytes())
    return digest.hexdigest()


def _create(venv: Path) -> int:
    """A virtual environment with a pip that works, also where an earlier run was interrupted."""
    python = venv / "bin/python"
    if python.exists():
        version, wanted = _version_of(python), ".".join(str(part) for part in sys.version_info[:2])
        if version not in ("", wanted):
            print(
                f"weir: {venv} belongs to Python {version}, this is {wanted}. "
                "Remove it with `make clean`, or name another one: make VENV=.venv-other ...",
                file=sys.stderr,
            )
            return 1
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
            for broken in venv.glob("lib/python*/site-packages/pip*"):
                shutil.rmtree(broken, ignore_errors=True)
    return subprocess.run([sys.executable, "-m", "venv", venv], check=False).returncode


def _version_of(python: Path) -> str:
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _install(venv: Path, name: str) -> int:
    command = [
        *(venv / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
        *("--progress-bar", "off", "-c", "constraints.txt", "-e", f".[{name}]"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as pip:
        lines = _follow(pip, venv)
    if pip.returncode:
        print("\n".join(lines[-_TAIL_LINES:]), file=sys.stderr)
        print(f"weir: pip could not install the set {name}; run make again to continue", file=sys.stderr)
    return pip.returncode


def _follow(pip: "subprocess.Popen[bytes]", venv: Path) -> list[str]:
    """Print the progress of pip, at least every few seconds; return all that it said."""
    assert pip.stdout is not None
    began, said, rest, phase = time.monotonic(), list[str](), b"", "pip compares versions"
    with selectors.DefaultSelector() as ready:
        ready.register(pip.stdout, selectors.EVENT_READ)
        while True:
            if not ready.select(_HEARTBEAT_S):
                print(
                    f"  {time.monotonic() - began:4.0f} s  {phase}; {_size(venv):,} MB are installed", flush=True
                )
                continue
            chunk = os.read(pip.stdout.fileno(), _CHUNK)
            if not chunk:
                return said
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (line.decode(errors="replace") for line in lines):
                said.append(line)
                phase = _phase(line, phase, time.monotonic() - began)


def _phase(line: str, phase: str, elapsed_s: float) -> str:
    """What pip does since this line; print it if it is news."""
    if got := _GOT.match(line):
        verb, file, size = got.groups()
        if ".metadata" in line or size.endswith("kB"):  # too small to be news
            return phase
        phase = f"{'downloading' if verb == 'Downloading' else 'cached:'} {_project(file)} ({size})"
    elif line.lstrip().startswith("Building "):
        phase = line.strip().lower()
    elif line.startswith("Installing collected packages:"):
        phase = f"unpacking {line.count(',') + 1} packages"
    else:
        return phase
    print(f"  {elapsed_s:4.0f} s  {phase}", flush=True)
    return phase


def _project(file: str) -> str:
    """`pyspark-4.3.0`, of a file's address."""
    return "-".join(file.rpartition("/")[2].removesuffix(".tar.gz").split("-")[:2])


def _size(venv: Path) -> int:
    """In megabytes, of the files' contents."""
    total = 0
    for folder, _, files in os.walk(venv):
        for file in files:
            try:
                total += os.lstat(os.path.join(folder, file)).st_size
            except FileNotFoundError:  # pip moves files
                continue
    return total // 1_000_000


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())

"""Runs `make demo` as a newcomer's freshly booted machine does, many times, and counts the failures.

    python3 tools/cold_demo.py                          # 20 runs; installs a virtual environment first
    python3 tools/cold_demo.py --runs 2 --venv DIR      # an environment of an earlier call, or a new one there

Each run has a fresh clone of the last commit, an empty home and temporary folder, one core, and no file in the
page cache (which only root can drop). The environment is shared by the runs: pip compiles what it installs, so
that it is as a new one. A run that fails keeps its folder. The exit code is 1 if a run failed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parent.parent
_DROP = Path("/proc/sys/vm/drop_caches")
_LIMIT_S = 900
_TAIL_LINES = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--core", type=int, default=0, help="the one that a run has")
    parser.add_argument("--folder", type=Path, help="for clones and logs; by default a temporary one")
    parser.add_argument("--venv", type=Path, help="by default one below the folder")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="weir-cold-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    venv = (given.venv or folder / "venv").resolve()
    installer = clone(folder / "setup")
    subprocess.run(make(installer, "setup-demo", venv), check=True, env=environment(installer))
    if not drop_page_cache():
        print("the page cache stays: only root can drop it", flush=True)
    results = [run(folder / f"run-{number + 1}", venv, given.core) for number in range(given.runs)]
    print(f"{results.count(True)} of {len(results)} runs passed; logs in {folder}")
    return 0 if all(results) else 1


def clone(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", _REPOSITORY, folder / "weir"], check=True)
    return folder / "weir"


def make(where: Path, target: str, venv: Path) -> list[str]:
    return ["make", "-C", str(where), target, f"VENV={venv}", f"PYTHON={sys.executable}"]


def environment(where: Path) -> dict[str, str]:
    """The code of this clone, also if the virtual environment was installed from another one."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"PYTHONPATH": str(where / "src")}


def run(folder: Path, venv: Path, core: int) -> bool:
    """Whether the demo succeeded."""
    where = clone(folder)
    homes = {name: folder / name.lower() for name in ("HOME", "TMPDIR")}
    for home in homes.values():
        home.mkdir()
    variables = {name: value for name, value in environment(where).items() if not name.startswith("XDG_")}
    drop_page_cache()
    log, began = folder / "demo.log", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            make(where, "demo", venv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables | {name: str(home) for name, home in homes.items()},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 - one system call
            start_new_session=True,
        )
        try:
            passed = process.wait(_LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            passed = False
            os.killpg(process.pid, 15)
            process.wait()
    print(f"{folder.name}: {'passed' if passed else 'FAILED'} after {time.monotonic() - began:.0f} s", flush=True)
    if passed:
        kept = folder.with_suffix(".log")
        shutil.move(log, kept)
        shutil.rmtree(folder)
    else:
        print("\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]))
    return passed


def drop_page_cache() -> bool:
    os.sync()
    try:
        _DROP.write_text("3")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

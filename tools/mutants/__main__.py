"""Mutation tests of the write path: breaks the code on purpose, and lists the changes that no test notices.

    python -m tools.mutants                                  all modules of the table
    python -m tools.mutants --module stream.appender         one of them
    python -m tools.mutants --sample 20 --seed 7             20 mutants of each
    python -m tools.mutants --module stream.appender --only _sent

Each mutant runs the mapped tests in a process of its own, which compiles the changed module from memory. No file
changes. `accepted.txt` lists mutants that change nothing that a test could see, with the reasons.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.mutants.mutations import Mutant, mutants_of
from tools.mutants.table import TARGETS

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_name("accepted.txt")
#: A mutant may take this long, or so many times as long as the unchanged code; then it is killed, and counts so.
_LEAST_S, _FACTOR = 30.0, 6.0
#: Of pytest: passed, failed, and stopped by an error while it collected.
_ANSWERS = (0, 1, 2)


class Outcome(NamedTuple):
    """What the tests said of one mutant."""

    mutant: Mutant
    killed: bool
    seconds: float


def main() -> int:
    options = _options()
    accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    chosen = options.module or sorted(TARGETS)
    survivors: list[str] = []
    for name in chosen:
        survivors += _examine(name, options, accepted)
    if survivors:
        print(f"\n{len(survivors)} mutants survived that are not in {ACCEPTED.relative_to(ROOT)}:")
        print("\n".join(survivors))
    return 1 if survivors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mutation tests of the write path.")
    parser.add_argument("--module", action="append", choices=sorted(TARGETS), help="only this one; repeatable")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each module; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    for name in options.module or ():
        if name not in TARGETS:
            parser.error(f"{name} is not in the table")
    return options


def read_accepted(text: str) -> dict[str, str]:
    """Mutants and the reasons: lines of `name # reason`."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(" # ")
            if not reason.strip():
                raise SystemExit(f"{ACCEPTED}: no reason for {name!r}")
            found[name.strip()] = reason.strip()
    return found


def _examine(name: str, options: argparse.Namespace, accepted: dict[str, str]) -> list[str]:
    """Run the mutants of one module; the names of those that survive and are not accepted."""
    mutants = [m for m in mutants_of(name, source_of(name)) if options.only in m.function]
    waiting = [mutant for mutant in mutants if mutant.name not in accepted]
    if options.sample:
        waiting = random.Random(f"{options.seed} {name}").sample(waiting, min(options.sample, len(waiting)))
    if options.list:
        print("\n".join(mutant.name for mutant in waiting))
        return []
    tests = TARGETS[name]
    begin = time.monotonic()
    if _run(name, None, tests, timeout_s=600.0):
        raise SystemExit(f"{name}: its tests fail without a mutant: {' '.join(tests)}")
    limit_s = max(_LEAST_S, _FACTOR * (time.monotonic() - begin))
    with ThreadPoolExecutor(options.workers) as pool:
        outcomes = list(pool.map(lambda mutant: judge(mutant, tests, limit_s), waiting))
    survived = [outcome.mutant for outcome in outcomes if not outcome.killed]
    print(
        f"{name}: {len(outcomes) - len(survived)} of {len(outcomes)} mutants killed, {len(survived)} survived"
        f" ({len(mutants)} in all, {time.monotonic() - begin:.0f} s)",
        flush=True,
    )
    return [f"{mutant.name}\n    line {mutant.line}: {mutant.change}" for mutant in survived]


def judge(mutant: Mutant, tests: Sequence[str], limit_s: float) -> Outcome:
    begin = time.monotonic()
    code = _run(mutant.module, mutant.name, tests, timeout_s=limit_s)
    if code not in _ANSWERS:
        raise SystemExit(f"{mutant.name}: the tests could not be run, exit code {code}")
    return Outcome(mutant, code != 0, time.monotonic() - begin)


def _run(module: str, mutant: str | None, tests: Sequence[str], *, timeout_s: float) -> int:
    """The exit code of the tests with this mutant; a run that does not end counts as failed."""
    command = [sys.executable, "-m", "tools.mutants.child", module, mutant or "", *tests]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def source_of(name: str) -> str:
    return (ROOT / "src" / "weir" / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""Kinds of tests, as a pytest plugin: what `make quick` leaves out is marked here, or by the tests themselves.

`process` starts an operating-system process, `spark` needs a Spark session, `slow` takes more than about half a
second of a core, or waits for real time. The first two follow from the fixtures that a test uses; whatever else
starts a process says so, and is skipped with a word about it where it does not. Of a test that has a parameter
`seed`, all but the first few seeds are slow. `longest` ones begin first, so that nobody waits for them at the
end. What a test does very often, at random, it does a twentieth as often in
`make quick`: see `rounds`.
"""

import gc
import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Fewer examples for every edit; `make test` has all of them.
#: How long an example takes is the machine's business: a slow one must not fail a test.
_ANY_MACHINE = [HealthCheck.too_slow]
settings.register_profile("whole", deadline=None, suppress_health_check=_ANY_MACHINE)
settings.register_profile("quick", max_examples=10, deadline=None, suppress_health_check=_ANY_MACHINE)
settings.load_profile("whole")

#: Fixtures that start Spark, and such that start some other process.
_SPARK = frozenset({"spark", "sql", "read"})
_PROCESS = frozenset({"bootstrap", "etcd_server", "own_etcd", "secured", "start_weir", "up", "weir", "weir_up"})

#: What a module says of all of its tests, in a line.
_WHOLE_MODULE = re.compile(r"^pytestmark = .*$", re.MULTILINE)
_MARK = re.compile(r"pytest\.mark\.(\w+)")

#: So many seeds of a test are for every edit.
_QUICK_SEEDS = 2


def rounds(whole: int) -> int:
    """How often to do what `make test` does `whole` times: a twentieth of it for every edit."""
    return max(whole // 20, 3) if settings.get_current_profile_name() == "quick" else whole


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A module that is, as a whole, of a kind that is not wanted now is not even imported."""
    wanted = str(config.getoption("markexpr"))
    if collection_path.suffix != ".py" or " or " in wanted:
        return None
    said = _WHOLE_MODULE.search(collection_path.read_text())
    marks = () if said is None else _MARK.findall(said.group())
    return True if any(f"not {mark}" in wanted.split(" and ") for mark in marks) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        if fixtures & _SPARK:
            item.add_marker(pytest.mark.spark)
        if fixtures & (_SPARK | _PROCESS):
            item.add_marker(pytest.mark.process)
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            seed = item.callspec.params.get("seed", 0)
            if isinstance(seed, int) and seed >= _QUICK_SEEDS:
                item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


def pytest_configure(config: pytest.Config) -> None:
    if "not process" not in str(config.getoption("markexpr")):
        return
    start = subprocess.Popen.__init__

    def start_outside_of_tests(self: "subprocess.Popen[Any]", *args: Any, **options: Any) -> None:
        if running := os.environ.get("PYTEST_CURRENT_TEST"):
            self.returncode = 0  # of one that never was
            pytest.skip(f"{running} starts a process, and should say so: pytest.mark.process")
        start(self, *args, **options)

    subprocess.Popen.__init__ = start_outside_of_tests  # type: ignore[method-assign]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What others have left goes before a test listens to the log: that it goes may be a line of it, and a command
    that ran in this process may have said what is logged."""
    if "caplog" in getattr(item, "fixturenames", ()):
        gc.collect()
        logging.getLogger("weir").setLevel(logging.NOTSET)
        logging.getLogger().setLevel(logging.WARNING)


def pytest_collection_finish() -> None:
    """What has been imported and collected stays to the end, and the collector need not walk through it again:
    thousands of tests weigh more than all that a simulation makes, and it collects often."""
    gc.collect()
    gc.freeze()

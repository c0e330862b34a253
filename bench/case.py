"""One measurement, done in a process of its own: `python -m bench.case NAME '{"size": 1024}' FOLDER`.

A fresh process per measurement keeps caches, threads and garbage of one from showing up in the next, and makes
its CPU time and memory its own. The result is one JSON object on standard output. With `--profile`, cProfile's
view of the same measurement goes to standard error.
"""

import cProfile
import importlib
import json
import os
import pstats
import sys
from collections.abc import Callable
from typing import Any

Params = dict[str, Any]
Measured = dict[str, float]
Case = Callable[[Params, str], Measured]

_MODULES = (
    "raw",
    "append",
    "reads",
    "scale",
    "topics",
    "broker",
    "perf_load",
    "kafka_load",
    "amqp_load",
    "spark_load",
    "lake_load",
    "pauses",
    "functions",
    "tiered_load",
)
_CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Register a measurement: parameters and an empty folder in, named numbers out."""

    def register(function: Case) -> Case:
        _CASES[name] = function
        return function

    return register


def main(arguments: list[str]) -> None:
    profiled = "--profile" in arguments
    name, params, folder = (a for a in arguments if a != "--profile")
    for module in _MODULES:
        importlib.import_module(f"bench.{module}")
    chosen = _CASES[name]
    os.makedirs(folder, exist_ok=True)
    if profiled:
        profile = cProfile.Profile()
        measured = profile.runcall(chosen, json.loads(params), folder)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    else:
        measured = chosen(json.loads(params), folder)
    print(json.dumps(measured))


if __name__ == "__main__":
    # Under -m this module runs as __main__; cases register with the importable one.
    from bench.case import main as importable_main

    importable_main(sys.argv[1:])

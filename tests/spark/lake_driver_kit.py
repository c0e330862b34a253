"""A driver of exports that is killed at each step, and what is in the table then."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from weir.testing.processes.up import environment

from .conftest import Topics
from .lake_kit import Lake

STEPS = ("planned", "written", "staged", "committed", "kept")


class Driver:
    def __init__(self, lake: Lake) -> None:
        place, definition = lake.place, lake.definition
        given = (
            place.access.url,
            place.kafka,
            definition.to,
            definition.catalog,
            json.dumps(dict(definition.options)),
        )
        command = [sys.executable, str(Path(__file__).with_name("lake_driver.py")), *given]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment(), **os.environ}
        )
        assert self._line() == "ready"

    def export(self, topic: str, step: str = "-") -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic} {step}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def count_every_offset(topics: Topics, lake: Lake) -> None:
    topic = topics.create(2)
    total = 0
    with closing(Driver(lake)) as driver:
        for step in STEPS:
            for partition in range(2):
                topics.fill(topic, [f"{step}{at}" for at in range(3)], partition)
            total += 3
            assert driver.export(topic, step) == "killed"
        assert driver.export(topic) == "ended 0"
    assert lake.places(topic) == [(partition, offset) for partition in range(2) for offset in range(total)]

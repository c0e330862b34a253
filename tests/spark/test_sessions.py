"""Sessions that the user builds: `import weir.spark` before or after, another Python, stopped and built again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

_PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

def build():
    here = "127.0.0.1"
    quiet = {"spark.ui.enabled": "false", "spark.driver.host": here, "spark.driver.bindAddress": here}
    builder = SparkSession.builder.master("local[1]")
    for name, value in quiet.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()

options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}

def tell(what, read):
    try:
        print(what, read.format("weir").options(**options).load().isStreaming or "a table")
    except Exception as failure:
        print(what, type(failure).__name__, failure)

spark = build()
import weir.spark
tell("before:", spark.read)
spark.stop()
spark = build()
tell("again:", spark.read)
tell("stream:", spark.readStream)
"""


def test_a_session_that_is_there_stopped_and_built_again_finds_the_format_or_is_told_why_not(
    topics: Topics, tmp_path: Path
) -> None:
    """The Python on the path has no Weir; Spark's JVM, once it runs, knows no other."""
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    topic = topics.create()
    topics.fill(topic, ["a", "b"])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    variables["PATH"] = f"{bare.parent}:{variables['PATH']}"
    done = subprocess.run(
        [sys.executable, str(program), topics.servers, topic],
        capture_output=True,
        text=True,
        env=variables,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before, *found = done.stdout.splitlines()
    assert before.startswith("before: SparkSetupError the Python that Spark runs (python3) has no Weir (build the")
    assert found == ["again: a table", "stream: True"]

"""A function on Spark that kills, in its calls, whoever works with it: in first calls, retries in their place, the
last one before a dead letter; then during an update and a stop; and every message is counted.

What a killed task had tried, its successor tries from the first attempt on: so a strike is once for its number and
attempt, whoever comes to it.
"""

from pathlib import Path

import pytest

from .conftest import Bench
from .test_killed_in_calls import LATER, NEVER, STRUCK, Killing, code, run

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

#: Whom a call kills: by how many parents above the process that calls. A task's process is a daemon's, which is
#: the JVM's, which the worker has started.
SPARK = {"caller": 0, "task": 1, "driver": 3, "worker": 4}
#: In which calls, at which attempts: the caller in all, which costs a moment; everybody else, after whom a Spark
#: is started anew, in one. In first calls they are killed by test_killed_on_spark.py.
STRIKES = (
    (STRUCK, 1, "caller"),
    (LATER, 2, "caller"),
    (NEVER, 3, "caller"),
    (LATER, 2, "task"),
    (NEVER, 3, "driver"),
    (NEVER, 3, "runner"),
    (LATER, 2, "worker"),
    (LATER, 2, "broker"),
)
EACH = 100


def test_on_spark_whoever_is_killed_in_whatever_call_every_message_is_counted(
    bench: Bench, tmp_path: Path
) -> None:
    variables = {"TMPDIR": str(tmp_path), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path} -XX:-UsePerfData"}
    killing = Killing(bench, tmp_path, "--checkpoints", str(tmp_path / "checkpoints"), variables=variables)
    function = bench.deploy(
        code(tmp_path, SPARK),
        on="spark",
        stateful="true",
        master="local[2]",
        batch_messages="20",
        retry="10ms",
        max_deliveries="3",
    )
    plans = [{(at * EACH + place, attempt): victim} for at, (place, attempt, victim) in enumerate(STRIKES)]
    run(killing, function, plans, EACH, updates=("worker",))

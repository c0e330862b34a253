"""A driver of exports as a process that forks one child for each command, so that a kill costs no second start.

Lines in: `export TOPIC STEP` (STEP: where the child kills itself with SIGKILL, or `-`). Lines out: how it ended.
"""

import json
import os
import signal
import sys

from weir.client.admin import Access
from weir.client.schemas import topic_of
from weir.spark.lake.catalog import Definition
from weir.spark.lake.export import Exporter, LocalJobs
from weir.spark.tables.names import WeirCluster


def main() -> None:
    url, kafka, to, catalog, options = sys.argv[1:]
    print("ready", flush=True)
    for line in sys.stdin:
        topic, step = line.split()
        child = os.fork()
        if child == 0:
            place = WeirCluster(Access(url, patience_s=5.0), kafka)
            exporter = Exporter(place, LocalJobs(), reached=lambda at, wanted=step: _die(at, wanted))
            exporter.export(topic_of(topic), Definition(to, catalog, json.loads(options)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def _die(at: str, wanted: str) -> None:
    if at == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

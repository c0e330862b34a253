"""An application of Celery's for its worker and for the tests: every run of a task is a line in a file.

Environment: `CELERY_FOLDER` has that file, the results and the gates that tasks wait for, `CELERY_BROKER` a URL.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.backends.rpc import RPCBackend

FOLDER = Path(os.environ["CELERY_FOLDER"])
QUEUE = os.environ.get("CELERY_QUEUE", "celery")
app = Celery("judged", broker=os.environ["CELERY_BROKER"], backend=f"file://{FOLDER}/results")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_extended=False,
    task_default_queue=QUEUE,
    task_default_exchange=QUEUE,
    task_default_routing_key=QUEUE,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
)


def run(what: str) -> None:
    """Write down that this runs now."""
    with (FOLDER / "runs").open("a") as runs:
        runs.write(f"{what}\n")


def runs() -> list[str]:
    """All that ran so far."""
    path = FOLDER / "runs"
    return path.read_text().split() if path.exists() else []


@app.task
def note(what: str) -> str:
    run(what)
    return what


@app.task(bind=True, max_retries=5)
def refuses_twice(self: Any, what: str) -> int:
    run(what)
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task
def plus(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(backend=RPCBackend(app, url="rpc://"), ignore_result=False)
def answered(number: int) -> int:
    return number * 2


def through(gate: str) -> None:
    while not (FOLDER / gate).exists():
        time.sleep(0.01)


@app.task
def waits(what: str, gate: str) -> str:
    """Acknowledged when it begins."""
    run(what)
    through(gate)
    return what


@app.task(acks_late=True, reject_on_worker_lost=True)
def waits_late(what: str, gate: str) -> str:
    """Acknowledged when it has ended."""
    run(what)
    through(gate)
    return what

"""The process that runs one function, light: `python -m weir.functions.worker`, started by its runner."""

import logging
import os
import signal
import sys

import click

from weir.client import functions as rest
from weir.client.blocking import Access
from weir.functions.counting import Origin, Reports
from weir.functions.options import from_text
from weir.functions.parent import end_with_parent
from weir.functions.place import Place
from weir.functions.working import Work
from weir.model.errors import WeirError
from weir.model.topics import TopicName

log = logging.getLogger(__name__)

#: How long a broker may be away.
_PATIENCE_S = 60.0
#: How often it is looked whether it shall stop, where nothing comes.
_LOOK_S = 0.5


@click.command()
@click.argument("name")
@click.option("--url", required=True)
@click.option("--ca")
@click.option("--cert")
@click.option("--cert-key")
@click.option("--kafka")
@click.option("--restarts", default=0)
@click.option("--level", default="WARNING")
def main(
    *,
    name: str,
    url: str,
    ca: str | None,
    cert: str | None,
    cert_key: str | None,
    kafka: str | None,
    restarts: int,
    level: str,
) -> None:
    """Run a function until a signal comes; then what is under way is finished."""
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: stopped.append(found))
    end_with_parent()
    access = Access(url, os.environ.get("WEIR_TOKEN"), ca, _PATIENCE_S, cert, cert_key)
    try:
        serve(access, TopicName.parse(name), kafka, restarts, stopped)
    except WeirError as failure:
        click.echo(str(failure), err=True)
        sys.exit(1)


def serve(access: Access, name: TopicName, kafka: str | None, restarts: int, stopped: list[int]) -> None:
    place = Place.find(access, kafka)
    function = rest.get_function(access, name).function
    options, state = from_text(function.options), ["starting"]
    work = Work(place, function, options, lambda: bool(stopped))
    origin = Origin.here(options.parallelism, restarts)
    reports = Reports(access, function, lambda: work.counts.stats(function, state[0], origin))
    try:
        work.open()
        state[0] = "running"
        reports.tell()
        while not stopped:
            work.step(_LOOK_S)
        state[0] = "stopped"
    except BaseException:
        state[0] = "failed"
        raise
    finally:
        work.close()
        reports.close()


if __name__ == "__main__":
    main()

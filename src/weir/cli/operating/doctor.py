"""`weir doctor`: whether this machine has what Weir and its data pipeline need, and what to do if not."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import disk_usage

import click

from weir.cli.found import DEFAULT_URL, addresses_of_folder, http_url
from weir.cli.operating.doctor_running import descriptors, folder, running, serves
from weir.cli.output import Column, Output
from weir.cli.remote import output_options
from weir.model.diagnosis import Check, State

_OLDEST_PYTHON = (3, 11)
_PORTS = {"pulsar": 6650, "kafka": 9092, "amqp": 5672, "rocketmq": 8081, "http": 8080}
#: `weir up` takes nothing new below the first; the second leaves room for a while.
_LEAST_BYTES, _GOOD_BYTES = 512 * 1024**2, 5 * 1024**3


@click.command(
    epilog="""
\b
Examples:
  weir doctor
  weir doctor --start-spark        also start Spark and run a query
  weir doctor --data /srv/weir     the folder that weir up will use
  weir doctor --url http://10.0.0.5:8080       ask a Weir elsewhere: ready? damaged? full? late?
"""
)
@click.option(
    "--data", default="weir-data", show_default=True, metavar="FOLDER", help="Where weir up will keep its data."
)
@click.option(
    "--url",
    envvar="WEIR_URL",
    help="A Weir that may be running, and is asked; by default the one that serves the folder.",
)
@click.option("--start-spark", is_flag=True, help="Really start a Spark session (some seconds).")
@output_options
def doctor(*, data: str, start_spark: bool, url: str | None, out: Output) -> int:
    """Check Python, Java, Spark, ports and disk, and a Weir that runs here, and say what to do."""
    found = list(_checks(Path(data), start_spark, url or _url(Path(data))))
    data_of = [{"name": c.name, "state": c.state.value, "found": c.found, "hint": c.hint} for c in found]
    columns = ("check", "state", Column("found", cut="end"), Column("what to do", cut="end"))
    out.table(columns, [(c.name, c.state.value, c.found, c.hint) for c in found], data=data_of)
    if out.shortened:
        for check in found:
            if check.hint and check.state is not State.GOOD:
                click.echo(f"{check.name}: {check.found}; {check.hint}")
    return 1 if any(check.state is State.FAILED for check in found) else 0


def _url(data: Path) -> str | None:
    """Of the server of the folder, which alone gets the token; the default address where there is no folder."""
    if not data.exists():
        return DEFAULT_URL
    served = addresses_of_folder(data)
    url = http_url(served)
    return url if url is not None and serves(url, str(served.get("instance", ""))) else None


def _checks(data: Path, start_spark: bool, url: str | None) -> Iterator[Check]:
    from weir.spark import checks as spark

    yield python(sys.version_info[:3])
    yield from spark.checks()
    if start_spark:
        yield spark.start_spark()
    served = addresses_of_folder(data)
    for name, port in _PORTS.items():
        yield free_port(name, port, str(served.get(name, "")))
    yield disk(data)
    yield descriptors()
    yield from folder(data)
    if url is None:
        yield Check("weir", State.GOOD, f"none runs on {data}", "")
    else:
        yield from running(url, os.environ.get("WEIR_TOKEN"))


def python(version: tuple[int, ...]) -> Check:
    text = f"Python {'.'.join(map(str, version))}, {sys.executable}"
    if version < _OLDEST_PYTHON:
        wanted = ".".join(map(str, _OLDEST_PYTHON))
        return Check("python", State.FAILED, text, f"install Python {wanted} or later")
    return Check("python", State.GOOD, text)


def free_port(name: str, port: int, served: str = "") -> Check:
    """Whether `weir up` can listen on its usual port. `served`: where the one that runs listens."""
    if served.endswith(f":{port}"):
        return Check(f"port {name}", State.GOOD, f"{port} is that of the Weir that runs here")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            hint = (
                "for a second Weir: weir up --port-offset 100 moves all listeners;"
                f" --set listeners.{name}=127.0.0.1:0 takes a free one"
            )
            return Check(f"port {name}", State.WARNING, f"{port} is in use", hint)
    return Check(f"port {name}", State.GOOD, f"{port} is free")


def disk(data: Path) -> Check:
    """Whether there is room where the data goes, or in the nearest folder above that exists."""
    folder = data.absolute()
    while not folder.exists():
        folder = folder.parent
    left = disk_usage(folder).free
    text = f"{left / 1024**3:.1f} GiB free for {data.absolute()}"
    if left < _LEAST_BYTES:
        return Check("disk", State.FAILED, text, "free some space, or give --data a folder on another disk")
    if left < _GOOD_BYTES:
        return Check("disk", State.WARNING, text, "enough to begin; retention decides how long")
    return Check("disk", State.GOOD, text)

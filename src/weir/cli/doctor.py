"""`weir doctor`: check this machine, a data folder and a running Weir, with a remedy for each problem.

The checks of a running Weir cover readiness, damage, disk space and lag.
"""

import json
import os
import resource
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from shutil import disk_usage
from time import time
from typing import NamedTuple

import click

from weir.cli.output import Column, Output
from weir.cli.remote import DEFAULT_URL, addresses_of_folder, http_url, output_options
from weir.cli.top import read_scrape
from weir.datafolder.survey import verify_folder
from weir.model.diagnosis import Check, State
from weir.model.errors import FileLockedError, WeirError
from weir.runtime.real import run

_TIMEOUT_S = 5.0
#: A few thousand clients exhaust fewer descriptors.
_FEW_DESCRIPTORS = 4096
#: A larger clock difference makes delays and timeouts surprising.
_CLOCK_S = 5.0


class Answer(NamedTuple):
    """The response to one request; status 0: no response."""

    status: int
    text: str
    date: str = ""


def ask(url: str, path: str, token: str | None = None) -> Answer:
    """Send a plain HTTP request, so that the check works even when parts of Weir do not."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return Answer(answer.status, answer.read().decode(errors="replace"), answer.headers.get("Date", ""))
    except urllib.error.HTTPError as refused:
        return Answer(refused.code, refused.read().decode(errors="replace"), refused.headers.get("Date", ""))
    except (OSError, HTTPException, ValueError) as failed:
        return Answer(0, str(failed))


def serves(url: str, instance: str) -> bool:
    """Whether the server at this address is the one that wrote the folder's `listening.json`."""
    answer = ask(url, "/admin/weir/v1/instance")
    try:
        return bool(instance) and json.loads(answer.text)["instance"] == instance
    except (ValueError, KeyError, TypeError):
        return False


def running(url: str, token: str | None = None) -> Iterator[Check]:
    """The state that the Weir at this address reports; one line if none runs."""
    ready = ask(url, "/ready", token)
    if ready.status == 0:
        yield Check("weir", State.GOOD, f"none runs at {url}", "")
        return
    if ready.status == 200:
        yield Check("weir", State.GOOD, f"runs at {url} and accepts messages")
    else:
        yield Check("weir", State.FAILED, f"runs at {url}, but: {_reason(ready)}", "see the server's log")
    yield from clock(ready.date)
    metrics = ask(url, "/metrics", token)
    if metrics.status != 200:
        hint = "give doctor a superuser's token: WEIR_TOKEN" if metrics.status in (401, 403) else "see its log"
        yield Check("weir metrics", State.WARNING, f"not available (status {metrics.status})", hint)
        return
    scrape = read_scrape(metrics.text, 0.0)
    values = {name: scrape.sum(name) for name in scrape.values}
    yield from damage(values)
    yield from listeners(values)
    yield from streams(ask(url, "/admin/weir/v1/streams", token))
    status = ask(url, "/admin/weir/v1/cluster", token)
    yield from replicas(status)


def _reason(answer: Answer) -> str:
    try:
        return str(json.loads(answer.text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}"


def clock(date: str) -> Iterator[Check]:
    """Whether the server's clock agrees with this machine's."""
    if not date:
        return
    try:
        apart = abs(parsedate_to_datetime(date).timestamp() - time())
    except (TypeError, ValueError):
        return
    if apart > _CLOCK_S:
        hint = "set both by NTP: delays, time to live and tokens use the server's clock"
        yield Check("clock", State.WARNING, f"the server's differs from this machine's by {apart:.0f} s", hint)


def damage(values: dict[str, float]) -> Iterator[Check]:
    """Whether the server has found damage."""
    damaged, skipped = int(values.get("weir_damaged_entries", 0)), int(values.get("weir_skipped_entries", 0))
    if damaged or skipped:
        found = f"{damaged} entries are damaged on its disk, {skipped} are lost, and readers skip them"
        hint = (
            "`weir topics stats` names the offsets; to find all, stop it and run `weir verify DATA`; "
            "see docs/how-to/damage.md"
        )
        yield Check("damage", State.WARNING, found, hint)
    else:
        yield Check("damage", State.GOOD, "none found")


def listeners(values: dict[str, float]) -> Iterator[Check]:
    """Whether listeners that a network can reach require authentication."""
    count = int(values.get("weir_open_listeners", 0))
    if count:
        found = f"{count} listeners accept network clients without authentication"
        hint = "docs/how-to/security.md has the steps: keys, tokens, grants, TLS; or listen on 127.0.0.1"
        yield Check("listeners", State.WARNING, found, hint)


def streams(answer: Answer) -> Iterator[Check]:
    """SQL streams that fail."""
    if answer.status != 200:
        return
    try:
        found = json.loads(answer.text)
        failing = [each["name"] for each in found if (each.get("progress") or {}).get("failures")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return
    if failing:
        yield Check(
            "streams", State.WARNING, f"failing: {', '.join(map(str, failing))}", "`weir streams list` says why"
        )


def replicas(answer: Answer) -> Iterator[Check]:
    """Ledgers of a cluster with a lost copy."""
    if answer.status != 200:
        return
    try:
        count = int(json.loads(answer.text).get("underReplicatedLedgers", 0))
    except (ValueError, TypeError, AttributeError):
        return
    if count:
        hint = "repair is under way if bookies enough run; see `weir cluster status`"
        yield Check("replicas", State.WARNING, f"{count} ledgers lack a copy", hint)


def descriptors() -> Check:
    """How many connections and files this process, and `weir up` from the same shell, may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        hint = "raise the limit: `ulimit -n 65536` in the shell, LimitNOFILE= in a systemd unit"
        return Check("file descriptors", State.WARNING, f"{soft} at a time", hint)
    return Check("file descriptors", State.GOOD, f"{soft} at a time")


def folder(data: Path) -> Iterator[Check]:
    """The state of a data folder; of a stopped one, everything that a start reads, except messages."""
    if not data.exists():
        return
    if not data.is_dir():
        yield Check("data folder", State.FAILED, f"{data} is not a folder", "give --data another path")
        return
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        hint = f"run Weir as its owner, or: chown -R $(id -un) {data}"
        yield Check("data folder", State.FAILED, f"{data} is not writable by this user", hint)
        return
    files = _files(data)
    losses = [str(path) for path in (data / "accepted-losses", data / "meta" / "accepted-losses") if path.exists()]
    losses += [str(path) for path in (data / "bookie" / "accepted-losses",) if path.exists()]
    if files.state is not State.GOOD:
        yield files
    elif losses:
        hint = "that file lists the loss; `weir verify` (stopped) checks all other data"
        yield Check("data folder", State.WARNING, f"a loss was accepted: {', '.join(losses)}", hint)
    elif (data / "salvage.json").exists():
        hint = f"{data / 'salvage.json'} lists the losses"
        yield Check("data folder", State.GOOD, f"{data} was salvaged", hint)
    else:
        yield files


def _files(data: Path) -> Check:
    """Whether all files that a start reads are intact."""
    name = "data folder"
    if not (data / "meta").exists() and not (data / "bookie").exists():
        return Check(name, State.GOOD, str(data))
    try:
        report = run(lambda runtime: verify_folder(runtime, str(data.absolute()), entry_logs=False))
    except FileLockedError:
        hint = "to check every checksum, stop Weir and run `weir verify`"
        return Check(name, State.GOOD, f"{data} is in use", hint)
    except WeirError as bad:
        return Check(name, State.FAILED, bad.what, bad.hint)
    if report.is_whole:
        hint = "`weir verify` checks the messages too"
        return Check(name, State.GOOD, f"{data}: metadata, journal and indexes are intact", hint)
    first = report.damages[0]
    found = f"{len(report.damages)} damaged places, the first: {first.path} at byte {first.offset}: {first.what}"
    return Check(name, State.FAILED, found, f"`weir verify {data}` lists all, with their remedies")


_OLDEST_PYTHON = (3, 11)
_PORTS = {"pulsar": 6650, "kafka": 9092, "amqp": 5672, "rocketmq": 8081, "http": 8080}
#: Below the first, `weir up` rejects new messages; the second leaves room for some time.
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
    "--data", default="weir-data", show_default=True, metavar="FOLDER", help="The data folder of weir up."
)
@click.option(
    "--url",
    envvar="WEIR_URL",
    help="The Weir to check; by default the one that serves the folder.",
)
@click.option("--start-spark", is_flag=True, help="Also start a Spark session (some seconds).")
@output_options
def doctor(*, data: str, start_spark: bool, url: str | None, out: Output) -> int:
    """Check Python, Java, Spark, ports, disk and a running Weir, and suggest remedies."""
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
    """The URL of the folder's server, the only one that receives the token; without a folder, the default URL."""
    if not data.exists():
        return DEFAULT_URL
    served = addresses_of_folder(data)
    url = http_url(served)
    return url if url is not None and serves(url, str(served.get("instance", ""))) else None


def _checks(data: Path, start_spark: bool, url: str | None) -> Iterator[Check]:
    from weir.spark import spark_session as spark

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
    """Whether `weir up` can listen on its default port. `served`: the address of a Weir that runs already."""
    if served.endswith(f":{port}"):
        return Check(f"port {name}", State.GOOD, f"{port} is in use by the Weir that runs here")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            hint = (
                "for a second Weir: weir up --port-offset 100 moves all listeners;"
                f" --set listeners.{name}=127.0.0.1:0 picks a free one"
            )
            return Check(f"port {name}", State.WARNING, f"{port} is in use", hint)
    return Check(f"port {name}", State.GOOD, f"{port} is free")


def disk(data: Path) -> Check:
    """Whether the disk of the data folder, or of its nearest existing parent, has enough free space."""
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

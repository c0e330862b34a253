"""What `weir doctor` asks of a Weir that runs, and sees in a data folder: is it ready, is anything damaged, full
or late."""

import json
import os
import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from time import time
from typing import NamedTuple

from weir.cli.operating.scrape import read_scrape
from weir.datafolder.verify import verify_folder
from weir.model.diagnosis import Check, State
from weir.model.errors import FileLockedError, WeirError
from weir.runtime.real import run

_TIMEOUT_S = 5.0
#: Fewer descriptors are used up by a few thousand clients.
_FEW_DESCRIPTORS = 4096
#: Clocks that differ by more make delays and time-outs surprising.
_CLOCK_S = 5.0


class Answer(NamedTuple):
    """Of one request; status 0: nobody answered."""

    status: int
    text: str
    date: str = ""


def ask(url: str, path: str, token: str | None = None) -> Answer:
    """Plain HTTP, so that no part of Weir has to be sound for the question."""
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
    """What a Weir at this address says of itself; one line if there is none."""
    ready = ask(url, "/ready", token)
    if ready.status == 0:
        yield Check("weir", State.GOOD, f"none runs at {url}", "")
        return
    if ready.status == 200:
        yield Check("weir", State.GOOD, f"runs at {url} and takes messages")
    else:
        yield Check("weir", State.FAILED, f"runs at {url}, but: {_reason(ready)}", "see the reason, and its log")
    yield from clock(ready.date)
    metrics = ask(url, "/metrics", token)
    if metrics.status != 200:
        hint = "give doctor a superuser's token: WEIR_TOKEN" if metrics.status in (401, 403) else "see its log"
        yield Check("weir metrics", State.WARNING, f"not told (status {metrics.status})", hint)
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
    """Whether its clock and ours agree."""
    if not date:
        return
    try:
        apart = abs(parsedate_to_datetime(date).timestamp() - time())
    except (TypeError, ValueError):
        return
    if apart > _CLOCK_S:
        hint = "set both by NTP: delays, time to live and tokens go by the server's clock"
        yield Check("clock", State.WARNING, f"the server's differs from this machine's by {apart:.0f} s", hint)


def damage(values: dict[str, float]) -> Iterator[Check]:
    """Whether it has met damage."""
    damaged, skipped = int(values.get("weir_damaged_entries", 0)), int(values.get("weir_skipped_entries", 0))
    if damaged or skipped:
        found = f"{damaged} entries are damaged on its disk, {skipped} are lost and left out by readers"
        hint = (
            "`weir topics stats` names the offsets; stop it and run `weir verify DATA` for all; "
            "see docs/how-to/damage.md"
        )
        yield Check("damage", State.WARNING, found, hint)
    else:
        yield Check("damage", State.GOOD, "none has been met")


def listeners(values: dict[str, float]) -> Iterator[Check]:
    """Whether it asks those who come over a network who they are."""
    count = int(values.get("weir_open_listeners", 0))
    if count:
        found = f"{count} listeners let in everybody who reaches them over a network"
        hint = "docs/how-to/security.md has the steps: keys, tokens, grants, TLS; or listen on 127.0.0.1"
        yield Check("listeners", State.WARNING, found, hint)


def streams(answer: Answer) -> Iterator[Check]:
    """Streams that SQL defined and that fail."""
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
    """How many clients and files this process, and so `weir up` from the same shell, may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FEW_DESCRIPTORS:
        hint = "raise it: `ulimit -n 65536` in the shell, LimitNOFILE= in a systemd unit"
        return Check("file descriptors", State.WARNING, f"{soft} at a time", hint)
    return Check("file descriptors", State.GOOD, f"{soft} at a time")


def folder(data: Path) -> Iterator[Check]:
    """The state of a data folder: of a stopped one all that a start reads, and no messages."""
    if not data.exists():
        return
    if not data.is_dir():
        yield Check("data folder", State.FAILED, f"{data} is no folder", "give --data another name")
        return
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        hint = f"run Weir as its owner, or: chown -R $(id -un) {data}"
        yield Check("data folder", State.FAILED, f"{data} may not be written by this user", hint)
        return
    files = _files(data)
    losses = [str(path) for path in (data / "accepted-losses", data / "meta" / "accepted-losses") if path.exists()]
    losses += [str(path) for path in (data / "bookie" / "accepted-losses",) if path.exists()]
    if files.state is not State.GOOD:
        yield files
    elif losses:
        hint = "that file says what was given up; `weir verify` (stopped) says whether all else is whole"
        yield Check("data folder", State.WARNING, f"a loss was accepted: {', '.join(losses)}", hint)
    elif (data / "salvage.json").exists():
        hint = f"{data / 'salvage.json'} lists what was lost then"
        yield Check("data folder", State.GOOD, f"{data} was salvaged", hint)
    else:
        yield files


def _files(data: Path) -> Check:
    """Whether all files are whole that a start reads."""
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
        return Check(name, State.GOOD, f"{data}: metadata, journal and indexes are whole", hint)
    first = report.damages[0]
    found = f"{len(report.damages)} damaged places, the first: {first.path} at byte {first.offset}: {first.what}"
    return Check(name, State.FAILED, found, f"`weir verify {data}` lists all and says how to mend them")

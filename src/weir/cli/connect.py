"""`weir connect`: define, list and control connectors, and run the process that moves their records."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weir.cli.command import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.model.definitions import ConnectorWanted
from weir.model.errors import ConfigError, ConnectorNotFoundError, NetworkError, RunnerBusyError, TopicClosedError
from weir.model.moments import parse_span_ms

if TYPE_CHECKING:
    from weir.client.admin import Access
    from weir.client.connectors import DefinedConnector
    from weir.connect.definitions import Definition
    from weir.connect.runner import Runner
    from weir.model.topics import TopicName

_PATIENCE_S = 5.0
#: A service may start before its broker does.
_BROKER_PATIENCE_S = 60.0
#: A killed runner keeps its role until its lease expires.
_LEASE_PATIENCE_S = 20.0
_STANDBY_S = 2.0
_SHORTEST_LEASE_MS, _LONGEST_LEASE_MS = 1_000, 600_000


@click.group(
    epilog="""
\b
Examples:
  weir connect add orders.toml        define a connector from a TOML file
  weir connect update orders.toml     change it; it resumes at its positions
  weir connect run                    run all connectors, until Ctrl-C
  weir connect list                   types, states, progress and errors
  weir connect status orders
  weir connect pause orders           and resume, stop, remove
  weir connect types                  connector types and their options
"""
)
def connect() -> None:
    """Move records between topics and PostgreSQL, files, S3, HTTP, other Kafka and Pulsar clusters."""


@connect.command(
    epilog=examples(
        "weir connect add orders.toml", "weir connect add orders.toml --check", "weir connect add - < orders.toml"
    )
)
@click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--check", is_flag=True, help="Validate the file; define nothing.")
@remote_options(changes=True)
def add(*, file: str, check: bool, remote: Remote, as_json: bool) -> None:
    """Define a connector. `weir connect run`, or weir up --connect, runs it."""
    from weir.client.connectors import add_connector, runner
    from weir.connect.definitions import parse, short_name

    name, config = _read(file)
    if check:
        done(f"connector {short_name(name)} is valid", as_json=as_json, connector=short_name(name))
        return
    access = _access(remote)
    _check_alone(access, parse(name, config))
    add_connector(access, name, config)
    runs = runner(access).where is not None
    rest = "" if runs else "; it starts with weir connect run"
    done(f"connector {short_name(name)} is defined{rest}", as_json=as_json, connector=short_name(name))


@connect.command(
    epilog=examples(
        "weir connect update orders.toml",
        "weir connect update orders.toml --check",
        "weir connect update - < orders.toml",
    )
)
@click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--check", is_flag=True, help="Check whether the update is possible; change nothing.")
@remote_options(changes=True)
def update(*, file: str, check: bool, remote: Remote, as_json: bool) -> None:
    """Change a connector's definition to FILE.toml. The connector resumes at its positions."""
    from weir.client.connectors import update_connector
    from weir.connect.definitions import check_update, parse, short_name

    name, config = _read(file)
    access = _access(remote)
    (known,) = _found(access, (short_name(name),))
    before, after = known.connector, parse(name, config)
    check_update(parse(name, before.config), after)
    shown = short_name(name)
    if check:
        done(f"connector {shown} can be updated", as_json=as_json, connector=shown)
        return
    _check_alone(access, after)
    update_connector(access, name, config)
    what = "is unchanged" if before.config == config else "is updated; it keeps its positions"
    done(f"connector {shown} {what}", as_json=as_json, connector=shown)


@connect.command(
    name="list", epilog=examples("weir connect list", "weir connect list -o wide", "weir connect list --json")
)
@remote_options
def list_connectors(*, remote: Remote, out: Output) -> None:
    """List the connectors and their progress."""
    from weir.client.connectors import all_connectors, runner
    from weir.connect.definitions import short_name

    access = _access(remote)
    runs = runner(access).where is not None
    rows = []
    for one in all_connectors(access):
        told = one.progress
        rows.append(
            [
                short_name(one.connector.name),
                _type(one.connector.config),
                _state(one, runs=runs),
                0 if told is None else told.records,
                0.0 if told is None else told.records_per_second,
                None if told is None or told.lag < 0 else told.lag,
                0 if told is None else told.dead_letters,
                0 if told is None else told.failures,
                "" if told is None else told.position,
                "" if told is None else told.error,
            ]
        )
    columns = [
        Column("connector"),
        Column("type"),
        Column("state"),
        Column("records"),
        Column("per second"),
        Column("lag"),
        Column("dead letters", wide=True),
        Column("failures"),
        Column("position", wide=True),
        Column("error", cut="end"),
    ]
    out.table(columns, rows)


@connect.command(epilog=examples("weir connect describe orders", "weir connect describe orders --json"))
@click.argument("name")
@remote_options
def describe(*, name: str, remote: Remote, out: Output) -> None:
    """Show a connector: its definition (secrets by name only) and its progress."""
    access = _access(remote)
    (one,) = _found(access, (name,))
    out.fields([*_status(access, one), *_definition(one.connector.config)])


@connect.command(epilog=examples("weir connect status orders", "weir connect status orders --json"))
@click.argument("name")
@remote_options
def status(*, name: str, remote: Remote, out: Output) -> None:
    """Show a connector's progress, its failures, their cause, and the time of the next retry."""
    access = _access(remote)
    (one,) = _found(access, (name,))
    out.fields(_status(access, one))


def _changing(word: str, wanted: ConnectorWanted, what: str, about: str) -> click.Command:
    @connect.command(
        name=word, help=about, epilog=examples(f"weir connect {word} orders", f"weir connect {word} orders stock")
    )
    @click.argument("names", nargs=-1, required=True, metavar="NAME...")
    @remote_options(changes=True)
    def change(*, names: tuple[str, ...], remote: Remote, as_json: bool) -> None:
        from weir.client.connectors import want
        from weir.connect.definitions import short_name

        access = _access(remote)
        for one in _found(access, names):
            want(access, one.connector.name, wanted)
            shown = short_name(one.connector.name)
            done(f"connector {shown} {what}", as_json=as_json, connector=shown, state=wanted.value)

    return change


_changing("pause", ConnectorWanted.PAUSED, "pauses", "Pause connectors: they keep their connections open.")
_changing("resume", ConnectorWanted.RUNNING, "runs", "Resume connectors at their positions.")
_changing(
    "stop",
    ConnectorWanted.STOPPED,
    "is stopped",
    "Stop connectors: they close their connections and keep their positions.",
)


@connect.command(epilog=examples("weir connect remove orders", "weir connect remove orders --if-exists"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Ignore connectors that do not exist.")
@remote_options(changes=True)
def remove(*, names: tuple[str, ...], if_exists: bool, remote: Remote, as_json: bool) -> None:
    """Remove connectors and their positions; records that they have moved stay."""
    from weir.client.connectors import remove_connector
    from weir.connect.definitions import short_name

    access = _access(remote)
    for one in _found(access, names, missing_ok=if_exists):
        remove_connector(access, one.connector.name)
        shown = short_name(one.connector.name)
        done(f"connector {shown} is removed; its records stay", as_json=as_json, connector=shown)


@connect.command(
    epilog=examples("weir connect types", "weir connect types postgresql", "weir connect types --json")
)
@click.argument("wanted", required=False, metavar="[TYPE]")
@remote_options
def types(*, wanted: str | None, remote: Remote, out: Output) -> None:
    """List the types of sources and sinks, and their options."""
    from weir.connect.options import TYPES

    rows = [
        [side, kind, name, option.kind, _default(option.default, needed=option.needed), option.about]
        for side, kinds in TYPES.items()
        for kind, table in kinds.items()
        for name, option in table.items()
        if wanted in (None, kind)
    ]
    if not rows:
        known = sorted({kind for kinds in TYPES.values() for kind in kinds})
        raise ConfigError(f"there is no type {wanted}", hint=f"one of {', '.join(known)}")
    heads = ("side", "type", "option", "kind", "default", "about")
    out.table([Column(head) for head in heads], rows)


@connect.command(
    epilog=examples(
        "weir connect run", "weir connect run --url https://weir:8443 --ca ca.pem --token file:runner.token"
    )
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@click.option(
    "--patience", type=click.IntRange(min=1), metavar="S", help="Exit if the broker is unavailable for S seconds."
)
@click.option("--standby", is_flag=True, help="Wait while another process runs the connectors.")
@click.option(
    "--lease",
    default="15s",
    show_default=True,
    metavar="SPAN",
    help="How long another process waits before it takes over, if this one dies.",
)
@click.option("--debug", is_flag=True, help="Log the full details of a connector failure.")
@remote_options(changes=True)
def run(
    *,
    kafka: str | None,
    patience: int | None,
    standby: bool,
    lease: str,
    debug: bool,
    remote: Remote,
    as_json: bool,
) -> None:
    """Run the connectors: one process runs all of them; with authentication it needs a superuser's token."""
    from weir.client.connectors import runner as asked_runner
    from weir.client.weir_cluster import Place
    from weir.connect import runner as runners

    logging.getLogger("weir").setLevel(logging.INFO)
    if debug:
        logging.getLogger(runners.__name__).setLevel(logging.DEBUG)
    stopped: list[int] = []
    lease_ms = parse_span_ms(lease)
    if not _SHORTEST_LEASE_MS <= lease_ms <= _LONGEST_LEASE_MS:
        raise ConfigError(f"--lease is {lease}", hint="from 1s to 10min")
    place = Place.find(_access(remote, _BROKER_PATIENCE_S), kafka)
    runners.check_allowed(place)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopped.append(number))
    said = False
    while standby and not stopped:
        found = _asked(lambda: asked_runner(place.access))
        if found is not None and found.where is None:
            break
        if found is not None and not said:
            click.echo(f"{found.where} runs the connectors; this process is on standby")
            said = True
        time.sleep(min(_STANDBY_S, lease_ms / 4000))
    runner = runners.Runner(place, lease_ms=lease_ms)
    _take(runner, stopped, patience_s=None if standby else _LEASE_PATIENCE_S)
    if not stopped:
        click.echo(f"running connectors as process {os.getpid()}")
        runners.run(runner, lambda: bool(stopped), patience_s=patience)
    runner.close()


def _take(runner: "Runner", stopped: list[int], *, patience_s: float | None) -> None:
    """Acquire the runner lease; wait for the lease of a previous runner that died."""
    deadline = None if patience_s is None else time.monotonic() + patience_s
    while not stopped:
        try:
            runner.take()
            return
        except RunnerBusyError:
            if deadline is not None and time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _asked(ask: Callable[[], Any]) -> Any:
    """Return None while the broker is unavailable."""
    try:
        return ask()
    except (NetworkError, TopicClosedError):
        return None


def _access(remote: Remote, patience_s: float = _PATIENCE_S) -> "Access":
    return remote.access(patience_s)


def _read(file: str) -> "tuple[TopicName, str]":
    """Read the name and the definition of a connector from its file; - is standard input."""
    from weir.connect.definitions import read_file

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{file} cannot be read: {failure}") from None
    return read_file(text, file, None if file == "-" else Path(file).stem)


def _check_alone(access: "Access", wanted: "Definition") -> None:
    from weir.client.connectors import all_connectors
    from weir.connect.definitions import check_alone

    check_alone(wanted, (one.connector for one in all_connectors(access)))


def _found(access: "Access", names: Sequence[str], *, missing_ok: bool = False) -> "list[DefinedConnector]":
    """Find all named connectors before a command changes one of them."""
    from weir.client.connectors import all_connectors
    from weir.connect.definitions import parse_name, short_name

    listed = {one.connector.name: one for one in all_connectors(access)}
    found = []
    for name in names:
        one = listed.get(parse_name(name))
        if one is not None:
            found.append(one)
        elif not missing_ok:
            known = ", ".join(short_name(each) for each in list(listed)[:5])
            hint = (
                f"known connectors: {known}"
                if known
                else "no connectors are defined; weir connect add defines one"
            )
            raise ConnectorNotFoundError(f"there is no connector {name}", hint=hint)
    return found


def _type(config: str) -> str:
    said = json.loads(config)
    side = "source" if "source" in said else "sink"
    return f"{said.get(side, {}).get('type', '')} {side}"


def _state(one: "DefinedConnector", *, runs: bool) -> str:
    wanted = one.connector.wanted.value
    if not runs:
        return f"{wanted}, but no worker is connected" if wanted == "running" else wanted
    if one.progress is None:
        return "starting" if wanted == "running" else wanted
    return one.progress.state


def _status(access: "Access", one: "DefinedConnector") -> list[tuple[str, object]]:
    from weir.client.connectors import runner
    from weir.connect.definitions import short_name

    told, where = one.progress, runner(access).where
    found: list[tuple[str, object]] = [
        ("connector", short_name(one.connector.name)),
        ("type", _type(one.connector.config)),
        ("wanted", one.connector.wanted.value),
        ("state", _state(one, runs=where is not None)),
        ("run by", where),
        ("defined by", one.connector.role),
    ]
    if told is not None:
        found += [
            ("records", told.records),
            ("records per second", told.records_per_second),
            ("lag", None if told.lag < 0 else told.lag),
            ("position", told.position),
            ("dead letters", told.dead_letters),
            ("last batch ms", told.batch_ms),
            ("restarts", told.restarts),
            ("failures", told.failures),
            ("last failure", _moment(told.failed_ms)),
            ("next try", _moment(told.next_try_ms)),
            ("error", told.error),
        ]
    return found


def _moment(ms: int) -> str | None:
    from datetime import UTC, datetime

    return None if not ms else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _definition(config: str) -> list[tuple[str, object]]:
    """Options as the definition file states them."""
    found: list[tuple[str, object]] = []
    for key, value in json.loads(config).items():
        if isinstance(value, dict):
            found += [(f"{key}.{name}", _shown(one)) for name, one in value.items()]
        else:
            found.append((key, _shown(value)))
    return found


def _shown(value: Any) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else value


def _default(value: Any, *, needed: bool) -> str:
    if needed:
        return "needed"
    if value is None or value == {}:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)

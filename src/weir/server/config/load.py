"""From file, environment and command line to one configuration; the later word wins.

Each value remembers where it came from, and whatever is unknown or wrong is refused with that place in the error.

The options by which a command takes a configuration.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from weir.model.errors import ConfigError
from weir.server.addresses import Address
from weir.server.config.keys import build, find_key, nearest
from weir.server.config.tree import KEYS, Config

DEFAULT_ORIGIN = "default"
PORT_OFFSET = "listeners.port_offset"
_LARGEST_PORT = 65_535

#: Options of commands that are called otherwise than their setting.
_SETTINGS_OF_OPTIONS = {"port-offset": PORT_OFFSET}

#: Variables of ours that are no settings: they are the command line's.
_OTHERS = (
    *("WEIR_URL", "WEIR_TOKEN", "WEIR_TOKEN_FILE", "WEIR_CA", "WEIR_CERTIFICATE", "WEIR_KEY", "WEIR_META"),
    *(
        "WEIR_CONFIG",
        "WEIR_SQL_SERVER",
        "WEIR_SQL_IDLE",
        "WEIR_SPARK_MASTER",
        "WEIR_TIERED_STOP_AT",
        "WEIR_INSTANCE",
    ),
)
#: What Kubernetes puts into the environment of every pod beside a service that is called weir.
_KUBERNETES = re.compile(r"WEIR_(SERVICE_(HOST|PORT.*)|PORT(_.*)?)")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and where each value that is not a default came from."""

    config: Config
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def origin(self, name: str) -> str:
        return self.origins.get(name, DEFAULT_ORIGIN)

    def value(self, name: str) -> Any:
        return self.values.get(name, KEYS[name].default)


@dataclass(frozen=True, slots=True)
class _Given:
    name: str
    raw: object
    origin: str


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Loaded:
    """Read all sources in their order: file, environment, `--set`, and options of the command itself."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for given in _given(file, environment or {}, assignments, options or {}):
        try:
            key = find_key(KEYS, given.name)
            values[key.name] = key.parse(given.raw)
        except ConfigError as wrong:
            raise ConfigError(f"{given.origin}: {wrong.what}", hint=wrong.hint) from None
        origins[key.name] = given.origin
    _shift_ports(values, origins)
    return Loaded(build(Config, values), values, origins)


def _shift_ports(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Add the offset to the ports of all listeners. Port 0 means any free port, and remains 0."""
    offset = values.get(PORT_OFFSET, 0)
    found = {key.name: values.get(key.name, key.default) for key in KEYS.values()}
    ports = {name: it.port for name, it in found.items() if isinstance(it, Address) and it.port != 0}
    if offset == 0 or not ports:
        return
    highest = max(ports, key=ports.__getitem__)
    if ports[highest] + offset > _LARGEST_PORT:
        raise ConfigError(
            f"{origins[PORT_OFFSET]}: {highest}: port {ports[highest]} + {offset} is above {_LARGEST_PORT}",
            hint=f"use an offset of at most {_LARGEST_PORT - ports[highest]}",
        )
    for name, port in ports.items():
        values[name] = Address(found[name].host, port + offset)
        origins[name] = f"{origins.get(name, DEFAULT_ORIGIN)} + {PORT_OFFSET}"


def _given(
    file: Path | None, environment: Mapping[str, str], assignments: Sequence[str], options: Mapping[str, str]
) -> Iterator[_Given]:
    if file is not None:
        yield from _from_file(file)
    yield from _from_environment(environment)
    yield from _from_assignments(assignments)
    for option, value in options.items():
        yield _Given(_SETTINGS_OF_OPTIONS.get(option, option), value, f"--{option}")


def _from_file(path: Path) -> Iterator[_Given]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise ConfigError(f"cannot read {path}: {failure.strerror}", hint="check --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise ConfigError(f"{path} is not TOML: {wrong}", hint="write [section] and key = value") from None
    yield from _flat(tree, "", str(path))


def _flat(tree: Mapping[str, Any], prefix: str, origin: str) -> Iterator[_Given]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.", origin)
        else:
            yield _Given(prefix + name, value, origin)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    by_variable = {key.variable: key for key in KEYS.values()}
    for variable, text in sorted(environment.items()):
        if not variable.startswith("WEIR_") or variable in _OTHERS or _KUBERNETES.fullmatch(variable):
            continue
        if variable not in by_variable:
            hint = nearest(variable, list(by_variable))
            raise ConfigError(f"environment: {variable} is no setting", hint=hint)
        yield _Given(by_variable[variable].name, text, variable)


def _from_assignments(assignments: Sequence[str]) -> Iterator[_Given]:
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            # What follows a name may be a secret.
            named = re.match(r"[\w.]*", assignment)
            shown = named[0] if named else ""
            raise ConfigError(f"--set: {shown!r} is no assignment", hint="write --set key=value")
        yield _Given(name.strip(), value.strip(), "--set")


#: `--port-offset N`, as `port_offset`: None if it is not given.
port_offset_option = click.option(
    "--port-offset",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Add N to the port of each listener: with 100, Pulsar 6750, Kafka 9192, HTTP 8180, and so on.",
)


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--config FILE` and `--set key=value`, as `config_file` and `assignments`."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one value; may be repeated. See weir config show.",
    )(command)
    return click.option(
        "--config", "config_file", envvar="WEIR_CONFIG", metavar="FILE", help="Read settings from a TOML file."
    )(command)

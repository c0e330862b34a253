"""What the table of options cannot say: which go together, and what addresses look like. Checked when a connector
is defined, so that no runner is needed to learn of it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from weir.client.kafka.settings import parse_servers
from weir.model.errors import ConfigError

_STORES = ("", "file", "s3", "s3a")


def check(side: str, kind: str, options: Mapping[str, Any], about: str) -> None:
    """ConfigError says what does not go together."""
    rule = {"files": _files, "postgresql": _postgresql, "http": _http, "kafka": _kafka, "pulsar": _pulsar}[kind]
    try:
        rule(side, options)
    except ConfigError as wrong:
        raise ConfigError(f"{about}: {wrong.what}", hint=wrong.hint) from None


def _files(side: str, options: Mapping[str, Any]) -> None:
    scheme = urlsplit(options["path"]).scheme
    if scheme not in _STORES:
        raise ConfigError(
            f"path is {options['path']!r}, of a kind that is not known",
            hint="a folder, file:///... or s3://bucket/...",
        )
    if (options["access_key"] is None) != (options["secret_key"] is None):
        raise ConfigError("access_key and secret_key belong together", hint="name both, or none")
    if options["engine"] == "spark" and options.get("on_error") == "dead_letter":
        raise ConfigError('engine = "spark" has no dead letters', hint="leave engine out, or on_error")
    if side == "source" and len(options["delimiter"]) != 1:
        raise ConfigError(f"delimiter is {options['delimiter']!r}", hint="one character")


def _postgresql(side: str, options: Mapping[str, Any]) -> None:
    if side == "source" and (options["table"] is None) == (options["query"] is None):
        raise ConfigError("a source of PostgreSQL needs table or query", hint="one of them")


def _http(side: str, options: Mapping[str, Any]) -> None:
    if not options["url"].startswith(("http://", "https://")):
        raise ConfigError(f"url is {options['url']!r}", hint="http://... or https://...")
    if not options["url"].isascii() or any(char.isspace() for char in options["url"]):
        raise ConfigError(
            f"url is {options['url']!r}", hint="write what is no letter of an address as %20, %C3%A9, ..."
        )
    if side == "source" and (options["cursor"] is None) == (options["cursor_field"] is None):
        raise ConfigError(
            "a source of HTTP needs cursor or cursor_field",
            hint="one of them: where it is said from where to go on",
        )


def _kafka(side: str, options: Mapping[str, Any]) -> None:
    parse_servers(options["bootstrap_servers"])
    if options["username"] is not None and options["password"] is None:
        raise ConfigError("username has no password", hint='write password = { env = "NAME" }')


def _pulsar(side: str, options: Mapping[str, Any]) -> None:
    if not options["service_url"].startswith(("pulsar://", "pulsar+ssl://")):
        raise ConfigError(
            f"service_url is {options['service_url']!r}", hint="pulsar://host:6650 or pulsar+ssl://..."
        )

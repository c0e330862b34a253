"""A connector as its file says it: read, checked against the table of its type, and kept as JSON.

Secrets never are in a definition: an option that is one names a variable or a file of the machine that runs it.

What the table of options cannot say: which go together, and what addresses look like. Checked when a connector
is defined, so that no runner is needed to learn of it.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from weir.client.kafka.settings import parse_servers
from weir.connect.options import PLACES, TYPES, Option
from weir.model.definitions import Connector
from weir.model.errors import ConfigError, InvalidNameError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

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


_TOP = ("name", "topic", "topics", "description", "partitions", "source", "sink")
#: A password within a connection string of PostgreSQL's.
_CONNINFO_PASSWORD = re.compile(r"\b(?:ssl)?password\s*=", re.IGNORECASE)
_MAX_TOPICS = 100
_ANEW = "remove the connector and add it again; it then begins at its start"


@dataclass(frozen=True, slots=True)
class Definition:
    """One connector. `side`: source or sink; `options`: of its type, with their defaults."""

    name: TopicName
    side: str
    type: str
    topics: tuple[TopicName, ...]
    options: Mapping[str, Any]
    #: Of a topic that the source makes.
    partitions: int = 1

    @property
    def topic(self) -> TopicName:
        return self.topics[0]

    @property
    def label(self) -> str:
        return f"{self.type}-{self.side}"


def read_file(text: str, file: str, default: str | None = None) -> tuple[TopicName, str]:
    """The name and the JSON that is kept, of a file in TOML; ConfigError says what is wrong in it."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise ConfigError(
            f"{file} is no TOML: {bad}", hint="see docs/reference/connectors.md for examples"
        ) from None
    name = said.pop("name", default)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{file} has no name", hint='write name = "orders-from-postgres"')
    kept = json.dumps(said, sort_keys=True, default=str)  # dates, which no option is
    found = parse_name(name)
    parse(found, kept)
    return found, kept


def check_alone(wanted: Definition, others: Iterable[Connector]) -> None:
    """ConfigError if it would share the subscription of a topic: that is named after the sink, so two of one name,
    in two namespaces, would each leave out what the other has written."""
    for one in others:
        if one.name.local != wanted.name.local or one.name == wanted.name:
            continue
        other = parse(one.name, one.config)
        shared = [topic for topic in wanted.topics if topic in other.topics]
        if shared and wanted.side == other.side == "sink":
            raise ConfigError(
                f"the connector {short_name(other.name)} reads {shared[0]} by the same subscription",
                hint="give this one another name",
            )


def check_update(before: Definition, after: Definition) -> None:
    """ConfigError if the positions of the one would not be right for the other."""
    about = f"connector {short_name(after.name)}"
    if (before.side, before.type) != (after.side, after.type):
        raise ConfigError(
            f"{about} is a {before.type} {before.side}, and no {after.type} {after.side}", hint=_ANEW
        )
    for name in PLACES[after.side, after.type]:
        if before.options[name] != after.options[name]:
            raise ConfigError(
                f"{about}: an update cannot change {name}, which its positions belong to", hint=_ANEW
            )
    if before.side == "source" and before.topics != after.topics:
        raise ConfigError(f"{about}: an update cannot change the topic that it writes", hint=_ANEW)
    gone = [str(one) for one in before.topics if one not in after.topics]
    gone += [one for one in before.options.get("topics") or () if one not in (after.options.get("topics") or ())]
    if gone:
        raise ConfigError(
            f"{about}: an update cannot take {gone[0]} away, whose subscription would keep its messages",
            hint=_ANEW,
        )


def parse_name(text: str) -> TopicName:
    """`name`, or `tenant/namespace/name`."""
    try:
        found = TopicName.parse(text)
    except InvalidNameError as bad:
        raise ConfigError(
            f"{text!r} cannot be the name of a connector: {bad.what}", hint="write name, or tenant/namespace/name"
        ) from None
    if found.partition is not None or "://" in text:
        raise ConfigError(
            f"{text!r} cannot be the name of a connector", hint="write name, or tenant/namespace/name"
        )
    return found


def short_name(name: TopicName) -> str:
    """Bare in public/default."""
    return name.local if name.namespace == DEFAULT_NAMESPACE else f"{name.namespace}/{name.local}"


def parse(name: TopicName, kept: str) -> Definition:
    """ConfigError names what is not known, missing or of another kind."""
    about = f"connector {short_name(name)}"
    try:
        said = json.loads(kept)
    except ValueError:
        raise ConfigError(f"{about} is no JSON") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{about} is no table of options")
    for key in said:
        if key not in _TOP:
            inside = [side for side in ("source", "sink") if side in said and _takes(said[side], side, key)]
            hint = f"write it below [{inside[0]}]" if inside else _meant(key, _TOP)
            raise ConfigError(f"{about}: {key} is not known", hint=hint)
    sides = [side for side in ("source", "sink") if side in said]
    if len(sides) != 1:
        both = " needs one of [source] and [sink]" if not sides else " has both [source] and [sink]: make it two"
        raise ConfigError(f"{about}{both}", hint="see docs/reference/connectors.md for examples")
    side = sides[0]
    given = said[side]
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        raise ConfigError(f"{about}: [{side}] has no type", hint=f"one of {', '.join(sorted(TYPES[side]))}")
    kind = given["type"]
    table = TYPES[side].get(kind)
    if table is None:
        raise ConfigError(f"{about}: there is no {side} {kind!r}", hint=f"one of {', '.join(sorted(TYPES[side]))}")
    options = _options({key: value for key, value in given.items() if key != "type"}, table, about)
    check(side, kind, options, about)
    partitions = said.get("partitions", 1)
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= 10_000:
        raise ConfigError(f"{about}: partitions is {partitions!r}", hint="a number from 1 to 10000")
    return Definition(name, side, kind, _topics(name, said, side, kind, about), options, partitions)


def _topics(name: TopicName, said: Mapping[str, Any], side: str, kind: str, about: str) -> tuple[TopicName, ...]:
    listed = said.get("topics", [])
    if not isinstance(listed, list):
        raise ConfigError(f"{about}: topics is no list", hint='write topics = ["orders"]')
    found = [*([said["topic"]] if "topic" in said else []), *listed]
    if side == "source" and len(found) > 1:
        raise ConfigError(f"{about}: a source writes one topic", hint='write topic = "orders"')
    if not found and not (side == "source" and kind in ("kafka", "pulsar")):
        raise ConfigError(f"{about} names no topic", hint='write topic = "orders"')
    if len(found) > _MAX_TOPICS or len(set(map(str, found))) != len(found):
        raise ConfigError(f"{about} names a topic twice, or more than {_MAX_TOPICS}")
    topics = []
    for one in found:
        if not isinstance(one, str):
            raise ConfigError(f"{about}: {one!r} is no topic", hint='write topic = "orders"')
        full = one if "/" in one else f"{name.namespace}/{one}"
        try:
            topic = TopicName.parse(full)
        except InvalidNameError as bad:
            raise ConfigError(f"{about}: {bad.what}", hint="write topic, or tenant/namespace/topic") from None
        if topic.partition is not None:
            raise ConfigError(f"{about}: {one} is one partition", hint="name the topic")
        topics.append(topic)
    return tuple(topics)


def _options(given: Mapping[str, Any], table: Mapping[str, Option], about: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        option = table.get(key)
        if option is None:
            raise ConfigError(f"{about}: {key} is not known", hint=_meant(key, table))
        found[key] = option.read(f"{about}: {key}", value)
        if isinstance(value, str) and has_password(value):
            raise ConfigError(
                f"{about}: {key} has a password in it, which others could read",
                hint='leave it out, and write password = { env = "NAME" } or { file = "/path" }',
            )
    for key, option in table.items():
        if key not in found:
            if option.needed:
                raise ConfigError(f"{about} needs {key}: {option.about}")
            found[key] = option.default
    return found


def _meant(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"


def _takes(given: Any, side: str, key: str) -> bool:
    """Whether a part of the file could have an option: one that stands before its heading is often meant so."""
    return isinstance(given, dict) and key in TYPES[side].get(str(given.get("type")), {})


def has_password(text: str) -> bool:
    """In an address, or in a connection string."""
    if _CONNINFO_PASSWORD.search(text):
        return True
    try:
        return "://" in text and bool(urlsplit(text).password)
    except ValueError:
        return False

"""What is said of consumer groups beside their positions, and of the types of messages that a topic takes.

Both are RocketMQ's words. Settings of a group are kept in a property of its namespace, types in one of the topic.

Which messages a subscription wants: by tags, by an SQL92 condition over properties and keys, or by both.

A filter is a property of its subscription, so that it is stored with it and is the same for every protocol.

Order by message group, as a property of a subscription.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.model.errors import InvalidNameError, NotAllowedError, WeirError
from weir.model.ids import value
from weir.model.retry import DEAD_LETTERS, FixedDelays, RetryPolicy, RetrySchedule, parse_schedule

#: Properties of a subscription.
SQL_PROPERTY = "weir.filter"
TAGS_PROPERTY = "weir.filter.tags"
#: Headers of a message that filters know by name: its tag, and its keys if it has several (with a space between).
TAG_HEADER = "TAGS"
KEYS_HEADER = "KEYS"
#: Tags that let every message through.
ALL_TAGS = "*"


@value
class MessageFilter:
    """`tags`: `a || b`, or `*` for all. `sql`: a condition. A message has to pass both; "" lets all pass."""

    sql: str = ""
    tags: str = ""

    def __bool__(self) -> bool:
        """Whether it may leave anything out."""
        return bool(self.sql.strip()) or self.tags.strip() not in ("", ALL_TAGS)


def filter_in(properties: Mapping[str, str]) -> MessageFilter | None:
    """What the properties of a subscription say; None if they say nothing about it."""
    sql, tags = properties.get(SQL_PROPERTY), properties.get(TAGS_PROPERTY)
    return None if sql is None and tags is None else MessageFilter(sql or "", tags or "")


def with_filter(properties: Mapping[str, str], wanted: MessageFilter) -> dict[str, str]:
    """The properties with this filter instead of the one that they have."""
    found = {name: text for name, text in properties.items() if name not in (SQL_PROPERTY, TAGS_PROPERTY)}
    if wanted.sql.strip():
        found[SQL_PROPERTY] = wanted.sql
    if wanted.tags.strip() not in ("", ALL_TAGS):
        found[TAGS_PROPERTY] = wanted.tags
    return found


#: `true`: of each message group one message is out at a time, in the order of the log, to whichever consumer.
FIFO_PROPERTY = "weir.fifo"
#: A message that fails holds up its group, so it does not do so for ever: what holds where nothing else is said.
FIFO_RETRY = RetryPolicy(FixedDelays((1000,)), 16)


def is_fifo(properties: Mapping[str, str]) -> bool:
    return properties.get(FIFO_PROPERTY, "").lower() == "true"


MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction", "lite", "priority")
TYPES_PROPERTY = "weir.message-types"
_PREFIX = "weir.group."
_NAME = re.compile(r"[%|.a-zA-Z0-9_-]{1,255}")
_MOST_ATTEMPTS = 1000
#: RocketMQ's: 17 attempts, and what is waited after each of them that failed.
_WAITS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
DEFAULT_SCHEDULE = FixedDelays(tuple(seconds * 1000 for seconds in _WAITS_S))


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`fifo`: messages of one message group are received one after the other, in order. `max_attempts`: what was
    delivered so often and failed is a dead letter. `schedule`: what clients wait between two attempts.
    `lite_exclusive`: of the group's clients one at a time has a lite topic; who subscribes last gets it."""

    fifo: bool = False
    max_attempts: int = 17
    schedule: RetrySchedule = DEFAULT_SCHEDULE
    lite_exclusive: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= _MOST_ATTEMPTS:
            raise NotAllowedError(f"a message is attempted 1 to {_MOST_ATTEMPTS} times, not {self.max_attempts}")

    def retry(self, group: str) -> RetryPolicy:
        """For the group's subscriptions. What is waited is the clients' to say, for each message."""
        return RetryPolicy(None, self.max_attempts, f"{DEAD_LETTERS}{group}")

    def encode(self) -> str:
        said = {"fifo": self.fifo, "max_attempts": self.max_attempts, "schedule": str(self.schedule)}
        return json.dumps(said | ({"lite_exclusive": True} if self.lite_exclusive else {}), sort_keys=True)


def decode_settings(text: str) -> GroupSettings:
    """Those of a newer Weir, or none that can be read, are the usual ones."""
    try:
        said = json.loads(text)
        return GroupSettings(
            bool(said["fifo"]),
            int(said["max_attempts"]),
            parse_schedule(said["schedule"]),
            bool(said.get("lite_exclusive", False)),
        )
    except (ValueError, KeyError, TypeError, WeirError):
        return GroupSettings()


def check_group(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name[:80]!r} is not a consumer group", hint="use letters, digits and % | . _ -, up to 255 of them"
        )
    return name


def settings_in(properties: Mapping[str, str], group: str) -> GroupSettings | None:
    """What a namespace's properties say of the group."""
    said = properties.get(_PREFIX + group)
    return None if said is None else decode_settings(said)


def groups_in(properties: Mapping[str, str]) -> dict[str, GroupSettings]:
    return {
        name.removeprefix(_PREFIX): decode_settings(text)
        for name, text in sorted(properties.items())
        if name.startswith(_PREFIX)
    }


def with_settings(properties: Mapping[str, str], group: str, wanted: GroupSettings | None) -> dict[str, str]:
    """The properties with these settings of the group; None: with none."""
    found = {name: text for name, text in properties.items() if name != _PREFIX + group}
    return found if wanted is None else found | {_PREFIX + group: wanted.encode()}


def types_in(properties: Mapping[str, str]) -> tuple[str, ...]:
    """What a topic takes; one of which nothing is said takes all."""
    said = properties.get(TYPES_PROPERTY, "").split(",")
    return tuple(name for name in MESSAGE_TYPES if name in said) or MESSAGE_TYPES


def with_types(properties: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """The properties with these types; NotAllowedError for what is none. To name all is to say nothing."""
    names = set(wanted)
    unknown = names - set(MESSAGE_TYPES)
    if unknown or not names:
        raise NotAllowedError(
            f"{', '.join(sorted(unknown)) or 'nothing'} is no type of messages",
            hint=f"use {', '.join(MESSAGE_TYPES)}",
        )
    found = {name: text for name, text in properties.items() if name != TYPES_PROPERTY}
    if names == set(MESSAGE_TYPES):
        return found
    return found | {TYPES_PROPERTY: ",".join(name for name in MESSAGE_TYPES if name in names)}

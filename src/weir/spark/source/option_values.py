"""Values of options: flags, numbers, spans, and offsets as Spark's Kafka source writes them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.model.errors import ConfigError

_SPAN = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
#: Beside a topic's partitions in a checkpoint: which topic of its name it is.
_ID = "id"
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def flag(name: str, text: str) -> bool:
    """`true` or `false`."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}", hint="write true or false")
    return text.strip().lower() == "true"


def count(name: str, text: str, least: int = 1) -> int:
    """A whole number."""
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise ConfigError(f"{name} is {text!r}", hint=f"write a whole number, {least} or more")
    return found


def span_ms(name: str, text: str) -> int:
    """`15m`, `30s`, `100ms`; a bare number is milliseconds."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{name} is {text!r}", hint="write a span, as in 30s or 15m")
    return int(found[1]) * _UNIT_MS[found[2] or "ms"]


def by_partition(name: str, text: str, least: int) -> dict[Partition, int]:
    """`{"topic": {"0": 23, "1": -2}}`: a number for each partition."""
    try:
        parsed = json.loads(text)
        found = {
            Partition(topic, int(index)): number
            for topic, partitions in parsed.items()
            for index, number in partitions.items()
            if index != _ID  # of offsets that a query reported
        }
    except (ValueError, AttributeError):
        found = {}
    if not found or not all(type(number) is int and number >= least for number in found.values()):
        raise ConfigError(f"{name} is {text!r}", hint='write JSON, as in {"orders": {"0": 23, "1": 42}}')
    return found


def assigned(name: str, text: str) -> list[Partition]:
    """`{"topic": [0, 1]}`: the partitions to read."""
    try:
        parsed = json.loads(text)
        found = sorted(Partition(topic, index) for topic, indices in parsed.items() for index in indices)
    except (ValueError, AttributeError, TypeError):
        found = []
    if not found or not all(type(partition.index) is int and partition.index >= 0 for partition in found):
        raise ConfigError(f"{name} is {text!r}", hint='write JSON, as in {"orders": [0, 1]}')
    return found


def to_json(offsets: Mapping[Partition, int], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Offsets as a checkpoint has them. The form is that of Spark's Kafka source, with the id of each topic beside
    its partitions, as far as `ids` names it."""
    found: dict[str, Any] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.index)] = offsets[partition]
    for topic, parts in found.items():
        if ids and ids.get(topic):
            parts[_ID] = ids[topic]
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Partition, int]:
    """The offsets that `to_json` wrote."""
    return {
        Partition(topic, int(index)): offset
        for topic, parts in offsets.items()
        for index, offset in parts.items()
        if index != _ID
    }


def ids_of(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The topic ids that `to_json` wrote; older checkpoints, and those of Spark's Kafka source, have none."""
    return {topic: str(parts[_ID]) for topic, parts in offsets.items() if parts.get(_ID)}


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics that were deleted and created again; not those whose id is unknown on either side."""
    return sorted(name for name, known in before.items() if known and now.get(name) and now[name] != known)

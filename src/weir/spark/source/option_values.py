"""Values of options: flags, numbers, spans, and offsets as Spark's Kafka source writes them."""

import json
import re
from collections.abc import Mapping

from weir.client.kafka.cluster import Partition
from weir.model.errors import ConfigError

_SPAN = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
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


def to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Offsets as they are kept in a checkpoint; the form is that of Spark's Kafka source."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.index)] = offsets[partition]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """The opposite of `to_json`."""
    return {
        Partition(topic, int(index)): offset for topic, parts in offsets.items() for index, offset in parts.items()
    }

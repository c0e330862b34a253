"""Names by regular expressions: which namespaces and which brokers an isolation policy means."""

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from weir.model.registry import BrokerInfo


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the regular expressions is the whole name."""
    return any(_compiled(pattern).fullmatch(name) for pattern in patterns)


def is_named(patterns: Sequence[str], broker: BrokerInfo) -> bool:
    """Whether one of the regular expressions is the broker's whole name, or that of a host where it is reached."""
    return bool(patterns) and (
        matches(patterns, broker.broker_id)
        or any(matches(patterns, _host(url)) for url in broker.listeners.values())
    )


def _host(url: str) -> str:
    return urlsplit(url if "://" in url else f"//{url}").hostname or ""


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)

"""One exchange's bindings, compiled: which destinations a message's routing keys and headers choose.

A matcher takes and gives up one binding at a time, at a cost that does not grow with the others. It counts
bindings by destination, since several may lead to the same one.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from weir.broker.exchanges.counting import Counted, Target, count, uncount
from weir.broker.exchanges.headers import HeadersMatcher
from weir.broker.exchanges.topic_trie import TopicMatcher
from weir.model.exchanges import Binding, ExchangeType


class Matcher(Protocol):
    #: Whether the answer depends on routing keys, and on headers.
    keyed: bool
    by_headers: bool

    def add(self, binding: Binding) -> None:
        """A binding that it does not have."""

    def remove(self, binding: Binding) -> None:
        """A binding that it has."""

    def match(self, keys: tuple[str, ...], headers: Mapping[str, Any], found: set[Target]) -> None:
        """Add the destinations of a message to what was found."""


class DirectMatcher:
    """By the routing key itself."""

    keyed = True
    by_headers = False

    def __init__(self) -> None:
        self._by_key: dict[str, Counted] = {}

    def add(self, binding: Binding) -> None:
        count(self._by_key.setdefault(binding.routing_key, {}), binding.destination)

    def remove(self, binding: Binding) -> None:
        counted = self._by_key[binding.routing_key]
        uncount(counted, binding.destination)
        if not counted:
            del self._by_key[binding.routing_key]

    def match(self, keys: tuple[str, ...], headers: Mapping[str, Any], found: set[Target]) -> None:
        for key in keys:
            counted = self._by_key.get(key)
            if counted is not None:
                found.update(counted)


class FanoutMatcher:
    """All of them."""

    keyed = False
    by_headers = False

    def __init__(self) -> None:
        self._all: Counted = {}

    def add(self, binding: Binding) -> None:
        count(self._all, binding.destination)

    def remove(self, binding: Binding) -> None:
        uncount(self._all, binding.destination)

    def match(self, keys: tuple[str, ...], headers: Mapping[str, Any], found: set[Target]) -> None:
        found.update(self._all)


def matcher_of(type: ExchangeType) -> Matcher:  # noqa: A002
    """An empty one; `type` is what the exchange routes as."""
    match type:
        case ExchangeType.FANOUT:
            return FanoutMatcher()
        case ExchangeType.TOPIC:
            return TopicMatcher()
        case ExchangeType.HEADERS:
            return HeadersMatcher()
    return DirectMatcher()

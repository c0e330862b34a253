"""Headers exchanges: bindings whose arguments all match a message's headers, or any of them.

Bindings that want all are grouped by the names that they want; a group knows its bindings by the values, so that
it is asked once for a message however many there are. Groups are found by one of their names, the one that the
fewest groups are found by. Bindings that want any stand under each of their pairs. An argument without a value
(None) matches whatever the header's value is.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from weir.broker.exchanges.counting import Counted, Target, count, uncount
from weir.model.exchanges import X_MATCH, Binding, Destination, HeadersMatch, comparable

#: The names that must have a value, and those that must be there; each sorted.
_Wanted: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]

_NO_VALUE = object()


class _Group:
    """Bindings that want all of the same names."""

    __slots__ = ("by_values", "found_by", "wanted")

    def __init__(self, wanted: _Wanted, found_by: str) -> None:
        self.wanted = wanted
        self.found_by = found_by
        self.by_values: dict[tuple[Any, ...], Counted] = {}


class HeadersMatcher:
    keyed = False
    by_headers = True

    def __init__(self) -> None:
        #: Bindings that want all of nothing.
        self._always: Counted = {}
        self._groups: dict[_Wanted, _Group] = {}
        self._groups_by_name: dict[str, dict[_Wanted, _Group]] = {}
        #: Bindings that want any, by name and value, or `_NO_VALUE`.
        self._any: dict[str, dict[Any, Counted]] = {}

    def add(self, binding: Binding) -> None:
        how, pairs = _read(binding)
        if how.any:
            for name, value in pairs.items():
                count(self._any.setdefault(name, {}).setdefault(value, {}), binding.destination)
        elif not pairs:
            count(self._always, binding.destination)
        else:
            wanted, values = _split(pairs)
            group = self._groups.get(wanted) or self._new_group(wanted)
            count(group.by_values.setdefault(values, {}), binding.destination)

    def remove(self, binding: Binding) -> None:
        how, pairs = _read(binding)
        if how.any:
            for name, value in pairs.items():
                self._remove_any(name, value, binding.destination)
        elif not pairs:
            uncount(self._always, binding.destination)
        else:
            wanted, values = _split(pairs)
            group = self._groups[wanted]
            uncount(group.by_values[values], binding.destination)
            if not group.by_values[values]:
                del group.by_values[values]
            if not group.by_values:
                self._drop_group(group)

    def match(self, keys: tuple[str, ...], headers: Mapping[str, Any], found: set[Target]) -> None:
        found.update(self._always)
        values = {
            name: value if type(value) is str or type(value) is int else comparable(value)
            for name, value in headers.items()
        }
        for name, value in values.items():
            groups = self._groups_by_name.get(name)
            if groups is not None:
                for group in groups.values():
                    _match_all(group, values, found)
            by_value = self._any.get(name)
            if by_value is not None:
                if value in by_value:
                    found.update(by_value[value])
                if _NO_VALUE in by_value:
                    found.update(by_value[_NO_VALUE])

    def _new_group(self, wanted: _Wanted) -> _Group:
        valued, present = wanted
        names = valued + present
        found_by = min(names, key=lambda name: len(self._groups_by_name.get(name, ())))
        group = self._groups[wanted] = _Group(wanted, found_by)
        self._groups_by_name.setdefault(found_by, {})[wanted] = group
        return group

    def _drop_group(self, group: _Group) -> None:
        del self._groups[group.wanted]
        by_name = self._groups_by_name[group.found_by]
        del by_name[group.wanted]
        if not by_name:
            del self._groups_by_name[group.found_by]

    def _remove_any(self, name: str, value: Any, destination: Destination) -> None:
        by_value = self._any[name]
        uncount(by_value[value], destination)
        if not by_value[value]:
            del by_value[value]
        if not by_value:
            del self._any[name]


def _match_all(group: _Group, values: dict[str, Any], found: set[Target]) -> None:
    valued, present = group.wanted
    for name in present:
        if name not in values:
            return
    try:
        counted = group.by_values.get(tuple([values[name] for name in valued]))
    except KeyError:
        return
    if counted is not None:
        found.update(counted)


def _read(binding: Binding) -> tuple[HeadersMatch, dict[str, Any]]:
    """How it compares, and what counts of its arguments."""
    how = HeadersMatch.of(binding.arguments)
    pairs = {
        name: _NO_VALUE if value is None else comparable(value)
        for name, value in binding.arguments.items()
        if name != X_MATCH and (how.counts_x or not name.startswith("x-"))
    }
    return how, pairs


def _split(pairs: dict[str, Any]) -> tuple[_Wanted, tuple[Any, ...]]:
    valued = tuple(sorted(name for name, value in pairs.items() if value is not _NO_VALUE))
    present = tuple(sorted(name for name, value in pairs.items() if value is _NO_VALUE))
    return (valued, present), tuple(pairs[name] for name in valued)

"""Headers exchanges: bindings whose arguments all match a message's headers, or any of them.

Bindings that want all are grouped by the names that they want; a group knows its bindings by the values, so that
it is asked once for a message however many there are. Groups are found by one of their names, the one that the
fewest groups are found by. Bindings that want any stand under each of their pairs. An argument without a value
(None) matches whatever the header's value is.

Topic exchanges: patterns of words, where `*` is one word and `#` is any number of words, none included.

Patterns without either are looked up as they are. The others are a trie by words. A key walks it with all of the
nodes that its words so far may lead to, so that the cost is that of the nodes met, however many `#` there are. The
empty text has no words; a dot always stands between two, which may be empty.

One exchange's bindings, compiled: which destinations a message's routing keys and headers choose.

A matcher takes and gives up one binding at a time, at a cost that does not grow with the others. It counts
bindings by destination, since several may lead to the same one.

Destinations as matchers keep them, counted by the bindings that lead to them.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from weir.model.exchanges import X_MATCH, Binding, Destination, ExchangeType, HeadersMatch, comparable

#: A queue by its bare name, which is quick to hash and to sort; an exchange as it is.
Target: TypeAlias = str | Destination
#: How many bindings lead to each.
Counted: TypeAlias = dict[Target, int]


def target(destination: Destination) -> Target:
    return destination if destination.exchange else destination.name


def count(counted: Counted, destination: Destination) -> None:
    to = target(destination)
    counted[to] = counted.get(to, 0) + 1


def uncount(counted: Counted, destination: Destination) -> None:
    """One that is there."""
    to = target(destination)
    left = counted[to] - 1
    if left:
        counted[to] = left
    else:
        del counted[to]


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


class _Node:
    """Where the words of some patterns lead: by the word that is next, by any word, by any number of words."""

    __slots__ = ("any_number", "any_word", "here", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.any_word: _Node | None = None
        self.any_number: _Node | None = None
        #: What the patterns that end here are bound to.
        self.here: Counted = {}

    def child(self, word: str) -> "_Node | None":
        if word == "#":
            return self.any_number
        return self.any_word if word == "*" else self.words.get(word)

    def grow(self, word: str) -> "_Node":
        """The child for the pattern's word, made now if there is none."""
        found = self.child(word)
        if found is None:
            found = _Node()
            if word == "#":
                self.any_number = found
            elif word == "*":
                self.any_word = found
            else:
                self.words[word] = found
        return found

    def prune(self, word: str) -> None:
        if word == "#":
            self.any_number = None
        elif word == "*":
            self.any_word = None
        else:
            del self.words[word]

    @property
    def empty(self) -> bool:
        return not (self.here or self.words) and self.any_word is None and self.any_number is None


class TopicMatcher:
    keyed = True
    by_headers = False

    def __init__(self) -> None:
        self._exact: dict[str, Counted] = {}
        self._root = _Node()
        #: Bindings with a `*` or a `#`.
        self._patterns = 0

    def add(self, binding: Binding) -> None:
        words = words_of(binding.routing_key)
        if _is_exact(words):
            count(self._exact.setdefault(binding.routing_key, {}), binding.destination)
            return
        node = self._root
        for word in words:
            node = node.grow(word)
        count(node.here, binding.destination)
        self._patterns += 1

    def remove(self, binding: Binding) -> None:
        words = words_of(binding.routing_key)
        if _is_exact(words):
            counted = self._exact[binding.routing_key]
            uncount(counted, binding.destination)
            if not counted:
                del self._exact[binding.routing_key]
            return
        way = [self._root]
        for word in words:
            way.append(way[-1].grow(word))
        uncount(way[-1].here, binding.destination)
        self._patterns -= 1
        for parent, word, node in zip(reversed(way[:-1]), reversed(words), reversed(way), strict=False):
            if not node.empty:
                break
            parent.prune(word)

    def match(self, keys: tuple[str, ...], headers: Mapping[str, Any], found: set[Target]) -> None:
        for key in keys:
            counted = self._exact.get(key)
            if counted is not None:
                found.update(counted)
            if self._patterns:
                self._walk(key.split(".") if key else [], found)

    def _walk(self, words: list[str], found: set[Target]) -> None:
        # A node is met by one way only, but for those behind a `#`, which stay met whatever comes.
        met = [self._root]
        lasting: dict[_Node, None] = {}
        if self._root.any_number is not None:
            _enter(self._root, lasting)
        for word in words:
            following: list[_Node] = []
            for node in (*met, *lasting) if lasting else met:
                if node.words:
                    child = node.words.get(word)
                    if child is not None:
                        following.append(child)
                if node.any_word is not None:
                    following.append(node.any_word)
            for node in following:
                if node.any_number is not None:
                    _enter(node, lasting)
            met = following
            if not met and not lasting:
                return
        for node in (*met, *lasting):
            if node.here:
                found.update(node.here)


def _enter(node: _Node, lasting: dict[_Node, None]) -> None:
    """`#` is no word, too: whoever meets a node meets what is behind its `#`."""
    behind = node.any_number
    while behind is not None and behind not in lasting:
        lasting[behind] = None
        behind = behind.any_number


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


def _is_exact(words: list[str]) -> bool:
    return "*" not in words and "#" not in words


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

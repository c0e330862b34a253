"""Topic exchanges: patterns of words, where `*` is one word and `#` is any number of words, none included.

Patterns without either are looked up as they are. The others are a trie by words. A key walks it with all of the
nodes that its words so far may lead to, so that the cost is that of the nodes met, however many `#` there are. The
empty text has no words; a dot always stands between two, which may be empty.
"""

from collections.abc import Mapping
from typing import Any

from weir.broker.exchanges.counting import Counted, Target, count, uncount
from weir.model.exchanges import Binding


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

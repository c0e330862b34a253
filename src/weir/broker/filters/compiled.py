"""Filters compiled: tags as a set, conditions as closures; filters that say the same are one object."""

from collections.abc import Callable
from functools import lru_cache

from weir.broker.filters.conditions import Head
from weir.broker.filters.language import compile_sql
from weir.model.errors import FilterError
from weir.model.filters import ALL_TAGS, TAG_HEADER, MessageFilter

#: Of an expression of tags, in characters.
MAX_TAG_CHARACTERS = 4096
MAX_TAGS = 256


class CompiledFilter:
    """`takes`: whether a message passes, by its head. One object for each text, so that it can be a key."""

    __slots__ = ("source", "takes")

    def __init__(self, source: MessageFilter, takes: Callable[[Head], bool]) -> None:
        self.source = source
        self.takes = takes

    def __str__(self) -> str:
        """As people would say it."""
        tags, sql = self.source.tags, self.source.sql
        return " and ".join(part for part in (f"tags {tags}" if tags else "", sql) if part)


def compiled(wanted: MessageFilter | None) -> CompiledFilter | None:
    """None if it lets everything through. FilterError if it is wrong."""
    return _compiled(wanted.sql.rstrip(), wanted.tags.strip()) if wanted else None


@lru_cache(maxsize=4096)
def _compiled(sql: str, tags: str) -> CompiledFilter | None:
    wanted = MessageFilter(sql, tags)
    named = _tags(tags)
    condition = compile_sql(sql) if sql.strip() else None
    if condition is None:
        return None if named is None else CompiledFilter(wanted, _by_tag(named))
    if named is None:
        return CompiledFilter(wanted, lambda head: condition(head) is True)
    has_tag = _by_tag(named)
    return CompiledFilter(wanted, lambda head: has_tag(head) and condition(head) is True)


def _by_tag(named: frozenset[bytes]) -> Callable[[Head], bool]:
    return lambda head: head.get(TAG_HEADER) in named


def _tags(text: str) -> frozenset[bytes] | None:
    """`a || b`; None for all."""
    if text in ("", ALL_TAGS):
        return None
    if len(text) > MAX_TAG_CHARACTERS:
        raise FilterError(f"tags of a filter have {len(text)} characters, {MAX_TAG_CHARACTERS} are allowed")
    found: list[bytes] = []
    at = 0
    for part in text.split("||"):
        tag = part.strip()
        if not tag or "|" in tag:
            raise FilterError(
                f"the tags are wrong at position {at + 1}: no tag stands there",
                hint="write them as a || b, or * for all",
                position=at + 1,
            )
        if tag == ALL_TAGS:
            return None
        found.append(tag.encode("utf-8", "surrogatepass"))
        at += len(part) + 2
    if len(found) > MAX_TAGS:
        raise FilterError(f"a filter names {len(found)} tags, {MAX_TAGS} are allowed")
    return frozenset(found)

"""Filters compiled: tags as a set, conditions as closures; filters that say the same are one object."""

from collections.abc import Callable
from functools import lru_cache

from weir.broker.filters.conditions import Head
from weir.broker.filters.language import compile_sql
from weir.model.errors import FilterError
from weir.model.filters import ALL_TAGS, TAG_HEADER, MessageFilter

#: Of an expression of tags. RocketMQ has no limit; a filter is stored with its subscription.
MAX_TAG_CHARACTERS = 65_536
MAX_TAGS = 8_192
#: Few filters of more characters are kept compiled: thousands of them would fill the memory.
_LONG_CHARACTERS = 4096


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
    if not wanted:
        return None
    sql, tags = wanted.sql.rstrip(), wanted.tags.strip()
    return (_compiled_long if len(sql) + len(tags) > _LONG_CHARACTERS else _compiled_short)(sql, tags)


def _compile(sql: str, tags: str) -> CompiledFilter | None:
    wanted = MessageFilter(sql, tags)
    named = _tags(tags)
    condition = compile_sql(sql) if sql.strip() else None
    if condition is None:
        return None if named is None else CompiledFilter(wanted, _by_tag(named))
    if named is None:
        return CompiledFilter(wanted, lambda head: condition(head) is True)
    has_tag = _by_tag(named)
    return CompiledFilter(wanted, lambda head: has_tag(head) and condition(head) is True)


_compiled_short = lru_cache(maxsize=4096)(_compile)
_compiled_long = lru_cache(maxsize=64)(_compile)


def _by_tag(named: frozenset[bytes]) -> Callable[[Head], bool]:
    return lambda head: head.get(TAG_HEADER) in named


def _tags(text: str) -> frozenset[bytes] | None:
    """`a || b`; None for all. Empty places (`a||||b`) are skipped, as RocketMQ does it."""
    if text in ("", ALL_TAGS):
        return None
    if len(text) > MAX_TAG_CHARACTERS:
        raise FilterError(f"tags of a filter have {len(text)} characters, {MAX_TAG_CHARACTERS} are allowed")
    found: list[bytes] = []
    at = 0
    for part in text.split("||"):
        tag = part.strip()
        if "|" in tag:
            raise FilterError(
                f"the tags are wrong at position {at + 1}: a tag has no bar",
                hint="write them as a || b, or * for all",
                position=at + 1,
            )
        if tag == ALL_TAGS:
            return None
        if tag:
            found.append(tag.encode("utf-8", "surrogatepass"))
        at += len(part) + 2
    if not found:
        raise FilterError(f"the filter {text[:80]!r} names no tag", hint="write them as a || b, or * for all")
    if len(found) > MAX_TAGS:
        raise FilterError(f"a filter names {len(found)} tags, {MAX_TAGS} are allowed")
    return frozenset(found)

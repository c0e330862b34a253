"""Which messages a subscription wants: by tags, by an SQL92 condition over properties and keys, or by both.

A filter is a property of its subscription, so that it is stored with it and is the same for every protocol.
"""

from collections.abc import Mapping

from weir.model.value import value

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

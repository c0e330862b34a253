"""List queries of the management API (columns, sort, filter, pages), and conversion of AMQP tables to JSON."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from weir.broker.api.broker import Pattern
from weir.gateway.amqp.management.errors import ManagementError, bad_request
from weir.model.errors import NotAllowedError
from weir.rest.routes import Query

Item = dict[str, Any]
Items = list[Item]

COLUMNS = Query("columns", str, "only these columns, dotted names separated by commas")
LIST_QUERY = (
    COLUMNS,
    Query("sort", str, "the column to sort by"),
    Query("sort_reverse", str, "true: the largest first"),
    Query("page", str, "page number, from 1; the answer is then an object with the items and page counts"),
    Query("page_size", str, "items per page, default 100, at most 500"),
    Query("name", str, "only items with this text in their name"),
    Query("use_regex", str, "true: `name` is a regular expression (RE2)"),
)

_PAGE_SIZE = 100
_MOST_ON_A_PAGE = 500
_WHOLE = re.compile(r"[0-9]{1,9}")


def is_true(said: str | None) -> bool:
    return said in ("true", "1")


class Wanted:
    """The list parameters of a call."""

    def __init__(self, query: Mapping[str, Any]) -> None:
        """ManagementError for invalid page parameters."""
        self.columns = tuple(filter(None, (query.get("columns") or "").split(",")))
        self.sort = query.get("sort") or ""
        self.reverse = is_true(query.get("sort_reverse"))
        self.page, self.page_size = _page(query.get("page"), query.get("page_size"))
        self._matches = _matcher(query.get("name"), regex=is_true(query.get("use_regex")))

    @property
    def by_name(self) -> bool:
        """Whether names alone determine the content of the page."""
        return self.sort in ("", "name", "vhost")

    def takes(self, name: str) -> bool:
        return self._matches is None or self._matches(name)

    def ordered(self, items: Iterable[Item]) -> Items:
        found = list(items)
        if self.sort:
            found.sort(key=lambda item: _rank(value_at(item, self.sort)), reverse=self.reverse)
        return found

    def cut(self, items: Sequence[Any], *, filtered: int | None = None) -> Sequence[Any]:
        """The items of the requested page."""
        if self.page is None:
            return items
        first = (self.page - 1) * self.page_size
        count = len(items) if filtered is None else filtered
        if first >= count and self.page > 1:
            raise ManagementError(
                400,
                f"Page out of range, page: {self.page} page size: {self.page_size}, len: {count}",
                error="page_out_of_range",
            )
        return items[first : first + self.page_size]

    def answer(self, on_page: Iterable[Item], *, filtered: int, total: int) -> Any:
        """The answer body: a list, or a page with its counts."""
        items = [self.only(item) for item in on_page]
        if self.page is None:
            return items
        return {
            "filtered_count": filtered,
            "item_count": len(items),
            "items": items,
            "page": self.page,
            "page_count": max(1, -(-filtered // self.page_size)),
            "page_size": self.page_size,
            "total_count": total,
        }

    def only(self, item: Item) -> Item:
        """The item with the requested columns only."""
        if not self.columns:
            return item
        found: Item = {}
        for column in self.columns:
            _copy(item, found, column.split("."))
        return found


def answered_list(query: Mapping[str, Any], items: Items) -> Any:
    """Apply the list parameters of a call to all items."""
    wanted = Wanted(query)
    filtered = wanted.ordered(item for item in items if wanted.takes(str(item.get("name", ""))))
    return wanted.answer(wanted.cut(filtered), filtered=len(filtered), total=len(items))


def answered_one(query: Mapping[str, Any], item: Item) -> Item:
    return Wanted({"columns": query.get("columns")}).only(item)


def value_at(item: Any, path: str) -> Any:
    """The value at a dotted path; None if it does not exist."""
    for word in path.split("."):
        item = item.get(word) if isinstance(item, Mapping) else None
    return item


def _copy(source: Any, target: Item, path: Sequence[str]) -> None:
    if not isinstance(source, Mapping) or path[0] not in source:
        return
    if len(path) == 1:
        target[path[0]] = source[path[0]]
    else:
        below = target.setdefault(path[0], {})
        if isinstance(below, dict):
            _copy(source[path[0]], below, path[1:])


def _rank(value: Any) -> tuple[int, Any]:
    """Sort key: missing values first, then numbers, then texts."""
    if isinstance(value, bool | int | float):
        return (1, value)
    return (0, 0) if value is None else (2, str(value))


def _page(page: str | None, size: str | None) -> tuple[int | None, int]:
    if page is None:
        return None, _PAGE_SIZE
    number = int(page) if _WHOLE.fullmatch(page) else 0
    wanted = _PAGE_SIZE if size is None else int(size) if _WHOLE.fullmatch(size) else 0
    if number < 1 or not 1 <= wanted <= _MOST_ON_A_PAGE:
        raise ManagementError(
            400,
            f"Invalid pagination parameters: page number {page[:20]}, page size {(size or 'undefined')[:20]}",
            error="invalid_pagination_parameters",
        )
    return number, wanted


def _matcher(name: str | None, *, regex: bool) -> Any:
    if not name:
        return None
    if not regex:
        lower = name.lower()
        return lambda text: lower in text.lower()
    try:
        return Pattern(f"(?i){name}").found_in
    except NotAllowedError as bad:
        raise bad_request(bad.what) from None


_I64 = range(-(1 << 63), 1 << 63)
_MOST_DEPTH = 32


def as_json(value: Any) -> Any:
    """Convert a table value to JSON: bytes that are not UTF-8 become base64, a time becomes seconds since 1970."""
    match value:
        case bytes() | bytearray() | memoryview():
            return _text_of(bytes(value))
        case str():
            return value.encode("utf-8", "replace").decode()
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
    if isinstance(value, Mapping):
        return {as_json(str(name)): as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, Sequence) else value


def _text_of(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode()


def from_json(value: Any, what: str, *, depth: int = 0) -> Any:
    """Convert JSON to a table value. ManagementError for integers over 64 bits and for too deep nesting."""
    if depth > _MOST_DEPTH:
        raise bad_request(f"{what} is too deep")
    if isinstance(value, dict):
        return {name: from_json(one, what, depth=depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        return [from_json(one, what, depth=depth + 1) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and value not in _I64:
        raise bad_request(f"{what}: {value} has more than 64 bits")
    return value

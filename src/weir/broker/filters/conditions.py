"""Conditions over one message as closures, with SQL's three-valued logic: True, False, or None for unknown.

A head is all that a condition sees of a message: its properties by name, as bytes, and its key. Texts are compared
as UTF-8, whose order is that of their characters. A property is a number, a truth value or a text, as what it is
compared with asks for; where it cannot be that, the comparison is unknown, as it is where there is no property of
that name.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from re2 import Options, escape
from re2 import compile as compile_pattern

from weir.model.filters import KEYS_HEADER

Head = Mapping[str, bytes | None]
Condition = Callable[[Head], bool | None]
Number = int | float
#: What an operand is for one message: None if it is not there.
Text = Callable[[Head], bytes | None]

#: The name under which a head has the key: no property can have it.
KEY = "\x00key"
#: Other names of the key, where there is no property of that name.
_KEYS = (KEYS_HEADER, "KEY")
_NUMBER = re.compile(rb"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?")
_MOST_DIGITS = 64
_TRUTH = {b"true": True, b"false": False}

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@lru_cache(maxsize=8192)
def number_of(text: bytes | None) -> Number | None:
    """The number that a text is; None if it is none."""
    if text is None or len(text) > _MOST_DIGITS:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match[1] is None and match[2] is None and match[3] is None:
        return int(text)
    number = float(text)
    return number if isfinite(number) else None


def truth_of(text: bytes | None) -> bool | None:
    """`true` and `false`, however they are written."""
    return None if text is None else _TRUTH.get(text.lower())


def property_named(name: str) -> Text:
    """A property of the message; the key for the names that mean it."""
    if name in _KEYS:
        return lambda head: head[name] if name in head else head.get(KEY)
    return lambda head: head.get(name)


def always(result: bool | None) -> Condition:
    return lambda head: result


# --- comparing --------------------------------------------------------------------------------------------------


def compare_number(text: Text, sign: str, than: Number) -> Condition:
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        found = number_of(text(head))
        return None if found is None else compared(found, than)

    return condition


def compare_text(text: Text, sign: str, than: bytes) -> Condition:
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else compared(found, than)

    return condition


def compare_truth(text: Text, sign: str, than: bool) -> Condition:
    equal = sign == "="

    def condition(head: Head) -> bool | None:
        found = truth_of(text(head))
        return None if found is None else (found is than) is equal

    return condition


def compare_properties(left: Text, sign: str, right: Text) -> Condition:
    """As numbers where both are, else as texts."""
    compared = COMPARISONS[sign]

    def condition(head: Head) -> bool | None:
        first, second = left(head), right(head)
        if first is None or second is None:
            return None
        one, other = number_of(first), number_of(second)
        return compared(first, second) if one is None or other is None else compared(one, other)

    return condition


def among(text: Text, texts: Sequence[bytes], numbers: Sequence[Number], *, null: bool) -> Condition:
    """IN. `null`: NULL is in the list, so that what is not found is unknown."""
    named, counted = frozenset(texts), frozenset(numbers)
    absent = None if null else False

    def condition(head: Head) -> bool | None:
        found = text(head)
        if found is None:
            return None
        if found in named:
            return True
        if not counted:
            return absent
        number = number_of(found)
        if number is None:  # it cannot be compared with those
            return None
        return True if number in counted else absent

    return condition


def is_null(text: Text) -> Condition:
    return lambda head: text(head) is None


def as_truth(text: Text) -> Condition:
    return lambda head: truth_of(text(head))


def like(text: Text, pattern: str, escape_by: str = "") -> Condition:
    """`%`: any characters; `_`: one. In time linear in the text, whatever the pattern."""
    pieces: list[str] = [""]  # what stands between the signs for any characters
    single = False
    regular: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "%" != escape_by:
            pieces.append("")
            regular.append(".*")
            continue
        if sign == "_" != escape_by:
            single = True
            regular.append(".")
            continue
        plain = next(signs) if sign == escape_by else sign
        regular.append(escape(plain))
        pieces[-1] += plain
    matches = _regular("".join(regular)) if single else _in_order([piece.encode() for piece in pieces])

    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else matches(found)

    return condition


def _regular(pattern: str) -> Callable[[bytes], bool]:
    options = Options()
    options.dot_nl = True
    options.log_errors = False
    fullmatch = compile_pattern(pattern, options).fullmatch
    return lambda found: fullmatch(found.decode("utf-8", "replace")) is not None


def _in_order(pieces: Sequence[bytes]) -> Callable[[bytes], bool]:
    """The first piece at the start, the last at the end, the others between them: each as early as it can be."""
    if len(pieces) == 1:
        return lambda found: found == pieces[0]
    first, last, between = pieces[0], pieces[-1], [piece for piece in pieces[1:-1] if piece]
    least = len(first) + len(last)

    def matches(found: bytes) -> bool:
        if len(found) < least or not found.startswith(first) or not found.endswith(last):
            return False
        at, end = len(first), len(found) - len(last)
        for piece in between:
            at = found.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def text_test(text: Text, test: Callable[[bytes, bytes], bool], part: bytes) -> Condition:
    def condition(head: Head) -> bool | None:
        found = text(head)
        return None if found is None else test(found, part)

    return condition


# --- logic ------------------------------------------------------------------------------------------------------


def negation(of: Condition) -> Condition:
    def condition(head: Head) -> bool | None:
        found = of(head)
        return None if found is None else not found

    return condition


def conjunction(parts: Sequence[Condition]) -> Condition:
    """False if any is; else unknown if any is."""

    def condition(head: Head) -> bool | None:
        result: bool | None = True
        for part in parts:
            found = part(head)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return condition


def disjunction(parts: Sequence[Condition]) -> Condition:
    """True if any is; else unknown if any is."""

    def condition(head: Head) -> bool | None:
        result: bool | None = False
        for part in parts:
            found = part(head)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return condition

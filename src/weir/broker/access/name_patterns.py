"""RabbitMQ's patterns of names, compiled once.

RE2 takes time linear in the name. It knows no look-around, which patterns of a RabbitMQ may have: those are left
to Python's `re`. They are administrators' own, and names are short.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from weir.broker.api.patterns import Pattern
from weir.model.errors import NotAllowedError
from weir.model.registry import Action, KeyPatterns, NamePatterns

#: What RabbitMQ takes no pattern for: no name at all.
_NONE = "^$"
_LOOKS_AROUND = ("(?=", "(?!", "(?<=", "(?<!")


def check_pattern(pattern: str) -> None:
    """NotAllowedError for what is none."""
    _found_in(pattern)


def allows(patterns: NamePatterns, action: Action, name: str) -> bool:
    """Whether one may do this with what has the name."""
    if action is Action.PRODUCE:
        return _found_in(patterns.write)(name)
    return action is Action.CONSUME and _found_in(patterns.read)(name)


def allows_configure(patterns: NamePatterns, name: str) -> bool:
    return _found_in(patterns.configure)(name)


def allows_key(patterns: KeyPatterns, action: Action, key: str, said: Mapping[str, str]) -> bool:
    """Whether a routing key may be used. `said`: what variables of the patterns stand for."""
    pattern = patterns.write if action is Action.PRODUCE else patterns.read
    for name, text in said.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(text))
    return _found_in(pattern)(key)


@lru_cache(1_000)
def _found_in(pattern: str) -> Callable[[str], bool]:
    try:
        return Pattern(pattern or _NONE).found_in
    except NotAllowedError:
        if not any(mark in pattern for mark in _LOOKS_AROUND):
            raise
        return _searched(pattern)


def _searched(pattern: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as bad:
        raise NotAllowedError(f"{pattern[:80]!r} is not a pattern: {bad}") from None
    return lambda name: compiled.search(name) is not None

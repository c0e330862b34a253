"""RabbitMQ's patterns of names, as RE2 reads them: compiled once, and no pattern can hold the broker up."""

from functools import lru_cache

from weir.broker.api.patterns import Pattern
from weir.model.registry import Action, NamePatterns

#: What RabbitMQ takes no pattern for: no name at all.
_NONE = "^$"


def check_pattern(pattern: str) -> None:
    """NotAllowedError for what RE2 cannot read: looking around and back references among them."""
    _compiled(pattern)


def allows(patterns: NamePatterns, action: Action, name: str) -> bool:
    """Whether one may do this with what has the name."""
    if action is Action.PRODUCE:
        return _matches(patterns.write, name)
    return action is Action.CONSUME and _matches(patterns.read, name)


def allows_configure(patterns: NamePatterns, name: str) -> bool:
    return _matches(patterns.configure, name)


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).found_in(name)


@lru_cache(1_000)
def _compiled(pattern: str) -> Pattern:
    return Pattern(pattern or _NONE)

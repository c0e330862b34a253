"""Levels of priority of a topic, and how long the lower ones may be kept waiting."""

from dataclasses import dataclass

from weir.model.errors import NotAllowedError

#: The header, or property, that says a message's level.
PRIORITY = "weir-priority"
MOST_LEVELS = 255
#: As many higher ones may be delivered before the oldest of a lower level that is ready.
DEFAULT_PASSED = 100


@dataclass(frozen=True, slots=True)
class Priority:
    """`levels` above 0; 0: none. What is ready is delivered highest first, but whenever `passed` messages of
    higher levels were delivered while a lower level had one ready, that level has its turn, for one; so it has
    after `longest_ms` without one. 0: no such bound, and lower levels may wait for ever."""

    levels: int = 0
    passed: int = DEFAULT_PASSED
    longest_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.levels <= MOST_LEVELS:
            raise NotAllowedError(f"a topic has 0 to {MOST_LEVELS} levels of priority, and not {self.levels}")
        if self.passed < 0 or self.longest_ms < 0:
            raise NotAllowedError("how long lower levels wait is 0 (no bound) or more")


#: Of a topic of which nobody has said anything: where a queue's declaration gives it levels, they are strict.
NO_LEVELS = Priority(0, 0, 0)

"""What a statement gives: rows, or a word on what was done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    #: Whether there are more than these.
    more: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    what: str
    fields: Mapping[str, Any] = field(default_factory=dict)

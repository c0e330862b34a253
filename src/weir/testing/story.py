"""Histories told by hand, one operation after the other: what checkers say of them."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic

from weir.testing.checking import Checker, violations_of
from weir.testing.operations import AnyOp, Pending, Recorder


class Story(Generic[AnyOp]):
    """Each operation takes a second; `usual` facts hold unless an operation says otherwise."""

    def __init__(self, make: type[AnyOp], checkers: Iterable[Checker], **usual: Any) -> None:
        self.now = 0.0
        self.history: Recorder[AnyOp] = Recorder(make, lambda: self.now)
        self._checkers = tuple(checkers)
        self._usual = usual

    def tell(self, client: str, kind: Enum, **facts: Any) -> Pending:
        self.now += 1
        return self.history.begin(client, kind, **{**self._usual, **facts})

    def broken(self) -> list[str]:
        """What all checkers say."""
        return [str(violation) for violation in violations_of(self.history.ops(), self._checkers)]

    def rejected_by(self, checker: Checker) -> str:
        """The one sentence of a checker."""
        violations = checker(self.history.ops())
        assert len(violations) == 1, violations
        assert violations[0].evidence
        return violations[0].sentence

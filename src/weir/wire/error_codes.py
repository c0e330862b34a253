"""Errors by number, as Weir's own protocols send them: one table for each protocol, used both ways."""

from collections.abc import Mapping
from typing import NamedTuple

from weir.model.errors import WeirError


class Failed(NamedTuple):
    """The request failed (id 0: the connection did); the protocol's table knows the codes."""

    request_id: int
    code: int
    what: str
    hint: str


class ErrorCodes:
    """Codes are for ever: a table grows, and never changes."""

    def __init__(self, errors: Mapping[int, type[WeirError]], *, other: int, who: str) -> None:
        """`other`: the code of whatever has none, and what a code of a later version is taken for."""
        self._errors = dict(errors)
        self._codes: dict[type[BaseException], int] = {error: code for code, error in errors.items()}
        self._other = other
        self._who = who

    def failed(self, request_id: int, error: BaseException) -> Failed:
        """The error as a response. A class without a code goes as its nearest ancestor that has one; what is no
        WeirError says nothing of the insides."""
        code = next((self._codes[cls] for cls in type(error).__mro__ if cls in self._codes), self._other)
        if isinstance(error, WeirError):
            return Failed(request_id, code, error.what, error.hint)
        return Failed(request_id, code, f"the {self._who} failed inside", "see its log")

    def error(self, failed: Failed) -> WeirError:
        """The response as an error."""
        return self._errors.get(failed.code, self._errors[self._other])(failed.what, hint=failed.hint)

"""Errors between brokers: by the name of their class, with what they say and the few things that some carry."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.model import errors
from weir.model.errors import (
    EntryLostError,
    MemberIdRequiredError,
    NotOwnerError,
    PeerFailedError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.wire.peer.values import ValueDecoder, encode_value

#: No text of a failure may be longer, in characters; what is longer is cut.
MAX_TEXT_CHARS = 1024
_MAX_LISTENERS = 64

#: Every class that can cross, by its name.
_CLASSES: dict[str, type[WeirError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, WeirError)
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way; the fields with defaults belong to the classes that have them."""

    error: str
    what: str
    hint: str = ""
    listeners: Mapping[str, str] = field(default_factory=dict)
    member_id: str = ""
    ledger_id: int = -1
    entry_id: int = -1


_FAILURE = ValueDecoder(Failure)


def failure_of(error: BaseException) -> Failure:
    """What another broker is told. A class that it cannot know goes as its nearest ancestor; what is no WeirError
    says nothing of this broker's insides."""
    if not isinstance(error, WeirError):
        return Failure(PeerFailedError.__name__, "the other broker failed inside", "see its log")
    name = next(cls.__name__ for cls in type(error).__mro__ if _CLASSES.get(cls.__name__) is cls)
    said = Failure(name, _cut(error.what), _cut(error.hint))
    if isinstance(error, NotOwnerError):
        listeners = {_cut(key): _cut(value) for key, value in list(error.listeners.items())[:_MAX_LISTENERS]}
        return Failure(said.error, said.what, said.hint, listeners)
    if isinstance(error, MemberIdRequiredError):
        return Failure(said.error, said.what, said.hint, member_id=error.member_id)
    if isinstance(error, EntryLostError):
        return Failure(said.error, said.what, said.hint, ledger_id=error.ledger_id, entry_id=error.entry_id)
    return said


def error_of(failure: Failure) -> WeirError:
    """The error again; PeerFailedError for a class that this Weir does not have."""
    kind, what, hint = _CLASSES.get(failure.error), failure.what, failure.hint
    if kind is None:
        return PeerFailedError(f"{failure.error}: {what}", hint=hint)
    if issubclass(kind, NotOwnerError):
        return kind(what, hint=hint, listeners=dict(failure.listeners))
    if issubclass(kind, MemberIdRequiredError):
        return kind(what, hint=hint, member_id=failure.member_id)
    if issubclass(kind, EntryLostError):
        return kind(what, hint=hint, ledger_id=failure.ledger_id, entry_id=failure.entry_id)
    return kind(what, hint=hint)


def encode_failure(error: BaseException) -> bytes:
    return encode_value(failure_of(error))


def decode_failure(data: Buffer) -> WeirError:
    return error_of(_FAILURE.decode(data))


def _cut(text: str) -> str:
    return text[:MAX_TEXT_CHARS].encode(errors="replace").decode()

"""Which function handles which command, how, and in which states: declared where the function stands.

A module under `handlers` decorates its functions; importing the folder is all that is needed to have them.

    @at_once(api.CommandFlow)          a plain function, called between two awaits of the receive loop
    @later(api.CommandLookupTopic)     a coroutine in the background; other commands overtake it
    @in_turn(api.CommandConnect)       a coroutine that the receive loop waits for

A handler answers with a command, with a ready frame, or with None if it said what it had to say itself. One that
is called at once and has much to do answers with that work (`runtime.turns`), which is done in turns before the
next command of the connection is looked at. A handler raises errors of `weir.model.errors`, which the session
answers in the form that the command's sender waits for.

Where a session stands, and what moves it, as a table.
"""

import importlib
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from weir.model.check import check
from weir.wire.pulsar.commands import Type, command_of
from weir.wire.pulsar.proto import Message


class State(Enum):
    CONNECTING = "expects a connect"
    SERVING = "takes commands"
    CLOSING = "takes nothing more, finishes what it took, and says why it ends"
    CLOSED = "is over"


class Event(Enum):
    CONNECTED = "the client has said who it is"
    ENDING = "bad input, credentials that ended, or the server wants to stop"
    GONE = "the client hung up, or the last word was said"


#: Every legal move; a missing one is a bug.
NEXT: dict[State, dict[Event, State]] = {
    State.CONNECTING: {
        Event.CONNECTED: State.SERVING,
        Event.ENDING: State.CLOSING,
        Event.GONE: State.CLOSED,
    },
    State.SERVING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED},
    State.CLOSED: {Event.ENDING: State.CLOSED, Event.GONE: State.CLOSED},
}
#: The states in which a session reads.
READING = (State.CONNECTING, State.SERVING)

F = TypeVar("F", bound=Callable[..., Any])


class Way(Enum):
    AT_ONCE = "at once"
    LATER = "later"
    IN_TURN = "in turn"


class Handler(NamedTuple):
    run: Callable[..., Any]  # (session, command), and the message if the command carries one
    way: Way
    state: State  # the one in which the command may come


HANDLERS: dict[int, Handler] = {}


def at_once(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.AT_ONCE, state)


def later(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.LATER, state)


def in_turn(*kinds: type[Message], state: State = State.SERVING) -> Callable[[F], F]:
    return _declare(kinds, Way.IN_TURN, state)


def _declare(kinds: tuple[type[Message], ...], way: Way, state: State) -> Callable[[F], F]:
    def declare(run: F) -> F:
        for kind in kinds:
            number = command_of(kind()).number
            check(number not in HANDLERS, f"{kind.__name__} has one handler")
            check(number != Type.SEND or way is Way.AT_ONCE, "a message's bytes are the receive buffer's")
            HANDLERS[number] = Handler(run, way, state)
        return run

    return declare


def load_handlers() -> None:
    """Import every module of the folder, so that each declares what it handles."""
    package = importlib.import_module("weir.gateway.pulsar.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")

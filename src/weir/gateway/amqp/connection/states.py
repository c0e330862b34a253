"""Where a connection stands, and what moves it, as a table."""

from enum import Enum


class State(Enum):
    HEADER = "expects the protocol header"
    START = "expects start-ok"
    SECURE = "expects secure-ok"
    TUNE = "expects tune-ok"
    OPEN = "expects open"
    SERVING = "takes commands"
    LEAVING = "finishes what it took, since its client closes it"
    CLOSING = "takes nothing more, and says why it ends"
    CLOSED = "is over"


class Event(Enum):
    GREETED = "the protocol header came"
    CHALLENGED = "the client must say more to be known"
    KNOWN = "the client has said who it is"
    TUNED = "the limits are agreed on"
    OPENED = "the client has its virtual host"
    LEFT = "the client closes the connection"
    ENDING = "bad input, credentials that ended, or the server wants to stop"
    GONE = "the client hung up, or the last word was said"


_END = {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED, Event.LEFT: State.LEAVING}
#: Every legal move; a missing one is a bug.
NEXT: dict[State, dict[Event, State]] = {
    State.HEADER: {Event.GREETED: State.START, **_END},
    State.START: {Event.CHALLENGED: State.SECURE, Event.KNOWN: State.TUNE, **_END},
    State.SECURE: {Event.KNOWN: State.TUNE, **_END},
    State.TUNE: {Event.TUNED: State.OPEN, **_END},
    State.OPEN: {Event.OPENED: State.SERVING, **_END},
    State.SERVING: _END,
    State.LEAVING: {Event.ENDING: State.LEAVING, Event.GONE: State.CLOSED, Event.LEFT: State.LEAVING},
    State.CLOSING: {Event.ENDING: State.CLOSING, Event.GONE: State.CLOSED, Event.LEFT: State.CLOSING},
    State.CLOSED: dict.fromkeys(Event, State.CLOSED),
}
#: The states in which commands are taken.
READING = frozenset({State.HEADER, State.START, State.SECURE, State.TUNE, State.OPEN, State.SERVING})
#: Those in which nobody is known yet.
OPENING = READING - {State.SERVING}

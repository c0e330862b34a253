"""Pulsar's frames: a command, and for two of them a message behind it.

    total u32 | command size u32 | command [| message]

Big-endian; `total` counts all that follows it. A frame longer than the limit is refused when its first four bytes
are there, before anything of it is kept.
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import InvariantError, UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.frames import FrameSplitter
from weir.wire.pulsar.commands import COMMANDS, Type, command_of, enveloped
from weir.wire.pulsar.proto import Message, api, parse

#: What a broker accepts as one message unless told otherwise; it tells its clients in CommandConnected.
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
#: Room for the command and the headers around the largest message.
FRAME_PADDING_BYTES = 10 * 1024
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES

#: The highest protocol version that this codec knows.
PROTOCOL_VERSION = max(api.ProtocolVersion.values())

_U32 = Struct(">I")
_SIZES = Struct(">II")
#: Size of the command, then its envelope if that has the usual form: type, tag, and a length of one byte.
_ENVELOPE = Struct(">I3sB")
_WITH_MESSAGE = (Type.SEND, Type.MESSAGE)
#: The commands whose envelope has that form: all that are sent once per entry.
_SHORT = {
    command.envelope: (command.number, command.kind, command.number in _WITH_MESSAGE)
    for command in COMMANDS.values()
    if len(command.envelope) == 3
}


class Frame(NamedTuple):
    """A command and, for SEND and MESSAGE, the message behind it: a slice of the receive buffer."""

    type: int  # a BaseCommand.Type
    command: Message
    message: memoryview | None


#: Half the cost of calling the class, which matters twice per entry.
_new = tuple.__new__


def splitter(limit: int = MAX_FRAME_BYTES) -> FrameSplitter:
    """Cuts one connection's bytes into the bodies that `decode_frame` takes."""
    return FrameSplitter(limit, _U32)


def decode_frame(body: memoryview) -> Frame:
    """The frame whose bytes, without `total`, are `body`."""
    if len(body) >= _ENVELOPE.size:
        size, envelope, length = _ENVELOPE.unpack_from(body)
        short = _SHORT.get(envelope)
        end = 8 + length
        if short is not None and length == size - 4 and length < 0x80 and end <= len(body):
            number, kind, with_message = short
            if with_message:
                return _new(Frame, (number, parse(kind, body[8:end]), body[end:]))
            if end == len(body):
                return _new(Frame, (number, parse(kind, body[8:]), None))
    return _decode_any(body)


def _decode_any(view: memoryview) -> Frame:
    """The same for an envelope of any form, and for everything that is wrong."""
    if len(view) < 4:
        raise WireError(f"a frame of {len(view)} bytes has no command")
    end: int = 4 + _U32.unpack_from(view)[0]
    if end > len(view):
        raise WireError(f"a command of {end - 4} bytes lies in a frame of {len(view)}")
    envelope = _parse_envelope(view[4:end])
    command = COMMANDS[envelope.type]
    if not envelope.HasField(command.field):  # type: ignore[arg-type]
        raise WireError(f"a command of type {command.name} has no {command.field}")
    found: Message = getattr(envelope, command.field)
    if command.number in _WITH_MESSAGE:
        return Frame(command.number, found, view[end:])
    if end != len(view):
        raise WireError(f"a {command.name} has {len(view) - end} bytes behind it")
    return Frame(command.number, found, None)


def _parse_envelope(data: memoryview) -> api.BaseCommand:
    try:
        return parse(api.BaseCommand, data)
    except WireError:
        # A type that is not in the enum is dropped by the parser, and so seems to be missing.
        if len(data) >= 2 and data[0] == 0x08 and data[1] not in COMMANDS:
            raise UnknownVersionError(f"a command of unknown type {data[1]}") from None
        raise


def encode_command(command: Message) -> bytes:
    """A frame of any command that carries no message."""
    if command_of(command).number in _WITH_MESSAGE:
        raise InvariantError(f"{type(command).__name__} goes with a message")
    data = enveloped(command)
    return _SIZES.pack(4 + len(data), len(data)) + data


def encode_with_message(command: api.CommandSend | api.CommandMessage, message: list[Buffer]) -> list[Buffer]:
    """A frame with a message behind its command, as buffers to write one after the other.

    The message is what `seal_message` gave, or what `decode_frame` cut out of another frame; it is not copied.
    """
    data = enveloped(command)
    total = 4 + len(data) + sum(map(len, message))
    return [_SIZES.pack(total, len(data)) + data, *message]

"""What only AMQP can say of a message, as `Message.native` keeps it: an AMQP consumer gets the very same bytes.

version u8 | exchange shortstr | routing key shortstr | properties: flags and values
"""

from weir.model.errors import UnknownVersionError, WireError
from weir.model.message import Message
from weir.wire.amqp.outgoing import Outgoing, outgoing

PROTOCOL = "amqp"
_VERSION = b"\x01"


def native_of(envelope: bytes, properties: bytes) -> tuple[str, bytes]:
    return PROTOCOL, _VERSION + envelope + properties


def split_native(message: Message) -> tuple[bytes, bytes] | None:
    """The envelope and the properties that a message came with; None if it did not come by AMQP."""
    if message.native is None or message.native[0] != PROTOCOL:
        return None
    data = message.native[1]
    if data[:1] != _VERSION:
        raise UnknownVersionError(f"a message of AMQP in the form {data[:1]!r}", hint="of a newer Weir?")
    try:
        middle = 2 + data[1]
        end = middle + 1 + data[middle]
    except IndexError:
        end = len(data) + 1
    if end > len(data):
        raise WireError("a message of AMQP has lost its exchange or routing key")
    return data[1:end], data[end:]


def outgoing_native(message: Message) -> Outgoing | None:
    """The message as it came by AMQP, nothing of it decoded; None if it came by another protocol."""
    found = split_native(message)
    if found is None:
        return None
    return outgoing(*found, b"" if message.value is None else message.value)

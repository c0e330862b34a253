"""The table of commands: number, class, place in the envelope, and who may send it.

A command travels in a `BaseCommand` whose `type` is the number of the one field that is set. So the envelope of
a command is a few constant bytes and a length, and needs no object:

    08 type | tag of the field | length | the command
"""

from enum import Flag
from typing import NamedTuple

from weir.model.errors import InvariantError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.proto import Message, serialize, varint

Type = api.BaseCommand


class Role(Flag):
    """Which side sends a command."""

    CLIENT = 1
    BROKER = 2
    BOTH = CLIENT | BROKER


class Command(NamedTuple):
    """One kind of command."""

    number: int
    name: str  # as in BaseCommand.Type
    field: str  # as in BaseCommand
    kind: type[Message]
    sender: Role
    envelope: bytes  # all that stands before the length of the command


_FROM_BOTH = ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "PING", "PONG")
_FROM_BROKER = (
    "CONNECTED",
    "SEND_RECEIPT",
    "SEND_ERROR",
    "MESSAGE",
    "SUCCESS",
    "ERROR",
    "PRODUCER_SUCCESS",
    "REACHED_END_OF_TOPIC",
    "ACTIVE_CONSUMER_CHANGE",
    "AUTH_CHALLENGE",
    "WATCH_TOPIC_LIST_SUCCESS",
    "WATCH_TOPIC_UPDATE",
    "TOPIC_MIGRATED",
)


def _sender(name: str) -> Role:
    if name in _FROM_BOTH:
        return Role.BOTH
    return (
        Role.BROKER
        if name in _FROM_BROKER or (name.endswith("_RESPONSE") and name != "AUTH_RESPONSE")
        else Role.CLIENT
    )


def _table() -> dict[int, Command]:
    fields = api.BaseCommand.DESCRIPTOR.fields_by_number
    table = {}
    for name, number in api.BaseCommand.Type.items():
        field = fields[number]
        if field.message_type is None:
            raise InvariantError(f"BaseCommand.{field.name} is not a command")
        kind: type[Message] = getattr(api, field.message_type.name)
        envelope = bytes((0x08, number)) + varint(number << 3 | 2)
        table[int(number)] = Command(int(number), name, field.name, kind, _sender(name), envelope)
    return table


#: Every command of the protocol, by its number.
COMMANDS = _table()
_BY_KIND = {command.kind: command for command in COMMANDS.values()}


def command_of(message: Message) -> Command:
    """The kind of a command message; an InvariantError for a message that is no command."""
    try:
        return _BY_KIND[type(message)]
    except KeyError:
        raise InvariantError(f"{type(message).__name__} is not a command") from None


def enveloped(message: Message) -> bytes:
    """The command as a serialized BaseCommand."""
    body = serialize(message)
    return command_of(message).envelope + varint(len(body)) + body

"""Pulsar's frames: a command, and for two of them a message behind it.

    total u32 | command size u32 | command [| message]

Big-endian; `total` counts all that follows it. A frame longer than the limit is refused when its first four bytes
are there, before anything of it is kept.

How the protocol says no: the answer to a request that is refused, in the form that its sender waits for.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from weir.model.errors import InvariantError, UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.node.frames import FrameSplitter
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Type, command_of, enveloped
from weir.wire.pulsar.proto import MAX_U64, Message, parse

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


Code: TypeAlias = api.ServerError.ValueType
#: The request id of an error that answers no request, but the connection.
NO_REQUEST = MAX_U64


def refusal(frame: Frame, code: Code, what: str) -> bytes | None:
    """The frame that refuses a client's command, or None where the protocol waits for no answer."""
    build = _FORMS.get(type(frame.command))
    if build is not None:
        answer = build(frame.command, code, what)
    elif "request_id" in frame.command.DESCRIPTOR.fields_by_name:
        answer = api.CommandError(request_id=getattr(frame.command, "request_id"), error=code, message=what)  # noqa: B009
    else:
        answer = None
    return None if answer is None else encode_command(answer)


def _connection(_command: Any, code: Code, what: str) -> Message:
    return api.CommandError(request_id=NO_REQUEST, error=code, message=what)


def _send(command: api.CommandSend, code: Code, what: str) -> Message:
    return api.CommandSendError(
        producer_id=command.producer_id, sequence_id=command.sequence_id, error=code, message=what
    )


def _ack(command: api.CommandAck, code: Code, what: str) -> Message | None:
    if not command.HasField("request_id"):
        return None
    return api.CommandAckResponse(
        consumer_id=command.consumer_id,
        request_id=command.request_id,
        txnid_least_bits=command.txnid_least_bits,
        txnid_most_bits=command.txnid_most_bits,
        error=code,
        message=what,
    )


def _lookup(command: api.CommandLookupTopic, code: Code, what: str) -> Message:
    failed = api.CommandLookupTopicResponse.Failed
    return api.CommandLookupTopicResponse(request_id=command.request_id, response=failed, error=code, message=what)


def _partitions(command: api.CommandPartitionedTopicMetadata, code: Code, what: str) -> Message:
    failed = api.CommandPartitionedTopicMetadataResponse.Failed
    return api.CommandPartitionedTopicMetadataResponse(
        request_id=command.request_id, response=failed, error=code, message=what
    )


def _coordinator(command: api.CommandTcClientConnectRequest, code: Code, what: str) -> Message:
    return api.CommandTcClientConnectResponse(request_id=command.request_id, error=code, message=what)


def _coded(answer: Callable[..., Message]) -> Callable[[Any, Code, str], Message]:
    """Answers that call it `error_code` and `error_message`."""
    return lambda command, code, what: answer(request_id=command.request_id, error_code=code, error_message=what)


def _transaction(answer: Callable[..., Message]) -> Callable[[Any, Code, str], Message]:
    """Answers that name the transaction again."""
    return lambda command, code, what: answer(
        request_id=command.request_id,
        txnid_least_bits=command.txnid_least_bits,
        txnid_most_bits=command.txnid_most_bits,
        error=code,
        message=what,
    )


def _new_transaction(command: api.CommandNewTxn, code: Code, what: str) -> Message:
    # There is no transaction yet; the coordinator's number is the upper half of an id.
    return api.CommandNewTxnResponse(
        request_id=command.request_id, txnid_most_bits=command.tc_id, error=code, message=what
    )


_FORMS: dict[type[Message], Callable[[Any, Code, str], Message | None]] = {
    api.CommandConnect: _connection,
    api.CommandAuthResponse: _connection,
    api.CommandSend: _send,
    api.CommandAck: _ack,
    api.CommandLookupTopic: _lookup,
    api.CommandPartitionedTopicMetadata: _partitions,
    api.CommandConsumerStats: _coded(api.CommandConsumerStatsResponse),
    api.CommandGetSchema: _coded(api.CommandGetSchemaResponse),
    api.CommandGetOrCreateSchema: _coded(api.CommandGetOrCreateSchemaResponse),
    api.CommandTcClientConnectRequest: _coordinator,
    api.CommandNewTxn: _new_transaction,
    api.CommandAddPartitionToTxn: _transaction(api.CommandAddPartitionToTxnResponse),
    api.CommandAddSubscriptionToTxn: _transaction(api.CommandAddSubscriptionToTxnResponse),
    api.CommandEndTxn: _transaction(api.CommandEndTxnResponse),
    api.CommandEndTxnOnPartition: _transaction(api.CommandEndTxnOnPartitionResponse),
    api.CommandEndTxnOnSubscription: _transaction(api.CommandEndTxnOnSubscriptionResponse),
}

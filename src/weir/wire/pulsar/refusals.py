"""How the protocol says no: the answer to a request that is refused, in the form that its sender waits for."""

from collections.abc import Callable
from typing import Any, TypeAlias

from weir.wire.pulsar.frames import Frame, encode_command
from weir.wire.pulsar.proto import Message, api
from weir.wire.pulsar.varint import MAX_U64

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

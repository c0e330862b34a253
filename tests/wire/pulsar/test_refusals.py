"""Every request can be refused in the form that its sender waits for."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Role, Type
from weir.wire.pulsar.frames import NO_REQUEST, Frame, decode_frame, refusal, splitter
from weir.wire.pulsar.proto import Message

REQUESTS = [command for command in COMMANDS.values() if Role.CLIENT in command.sender]
#: Nobody waits for an answer to these.
SILENT = (Type.FLOW, Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, Type.PING, Type.PONG)
NO = api.ServerError.NotAllowedError


def refused(command: Message, number: int) -> Any:
    data = refusal(Frame(number, command, None), NO, "no such thing")
    if data is None:
        return None
    (body,) = splitter().feed(data)
    return decode_frame(body).command


@pytest.mark.parametrize("command", REQUESTS, ids=lambda command: command.name)
def test_a_refusal_names_the_request_and_the_reason(
    make: Callable[[type[Message], Random], Any], command: Any
) -> None:
    request = make(command.kind, Random(1))
    if command.number == Type.ACK:
        request.request_id = 9
    answer = refused(request, command.number)
    if command.number in SILENT:
        assert answer is None
        return
    assert NO in (getattr(answer, "error", None), getattr(answer, "error_code", None))
    assert "no such thing" in (getattr(answer, "message", None), getattr(answer, "error_message", None))
    if command.number == Type.SEND:
        assert (answer.producer_id, answer.sequence_id) == (request.producer_id, request.sequence_id)
    else:
        assert answer.request_id == getattr(request, "request_id", NO_REQUEST)


def test_an_ack_that_asks_for_no_answer_gets_none() -> None:
    ack = api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual)
    assert refused(ack, Type.ACK) is None


def test_a_lookup_fails_as_a_lookup() -> None:
    answer = refused(api.CommandLookupTopic(topic="t", request_id=1), Type.LOOKUP)
    assert answer.response == api.CommandLookupTopicResponse.Failed
    answer = refused(api.CommandPartitionedTopicMetadata(topic="t", request_id=1), Type.PARTITIONED_METADATA)
    assert answer.response == api.CommandPartitionedTopicMetadataResponse.Failed


def test_a_refused_transaction_is_named_again() -> None:
    answer = refused(api.CommandEndTxn(request_id=1, txnid_least_bits=2, txnid_most_bits=3), Type.END_TXN)
    assert (answer.txnid_least_bits, answer.txnid_most_bits) == (2, 3)

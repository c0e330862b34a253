"""The table of calls: which number is which request, and what answers it.

Numbers are for ever: add, never change. 1 to 15 are about brokers as a whole, 16 to 31 about bundles and their
hand-over, 32 to 63 about transactions and groups, 64 to 79 about administration,
80 to 95 about queues, 96 to 111 about clients of gateways.
"""

from typing import Any

from weir.model.check import check
from weir.model.errors import PeerUnsupportedError
from weir.model.ids import Buffer
from weir.wire.peer import calls, coordinator_calls, queue_calls
from weir.wire.peer.protocol import A, Call, PeerRequest, ValueDecoder, encode_value

CALLS: tuple[Call[Any], ...] = (*calls.CALLS, *coordinator_calls.CALLS, *queue_calls.CALLS)

_BY_NUMBER = {call.number: call for call in CALLS}
_BY_REQUEST: dict[type[PeerRequest[Any]], Call[Any]] = {call.request: call for call in CALLS}
check(len(_BY_NUMBER) == len(_BY_REQUEST) == len(CALLS), "a call has a number and a request of its own")
_REQUESTS: dict[int, ValueDecoder[Any]] = {call.number: ValueDecoder(call.request) for call in CALLS}
_ANSWERS: dict[int, ValueDecoder[Any]] = {
    call.number: ValueDecoder(call.answer) for call in CALLS if call.answer_codec is None
}


def call_of(request: PeerRequest[A]) -> Call[A]:
    """The call that this request is of."""
    return _BY_REQUEST[type(request)]


def call_named(number: int) -> Call[Any]:
    """The call of that number; PeerUnsupportedError if this Weir has none, since a newer one may ask."""
    call = _BY_NUMBER.get(number)
    if call is None:
        raise PeerUnsupportedError(f"this broker does not know call {number}")
    return call


def decode_request_value(call: Call[A], data: Buffer) -> PeerRequest[A]:
    value: PeerRequest[A] = _REQUESTS[call.number].decode(data)
    return value


def encode_answer_value(call: Call[A], answer: A) -> bytes:
    return encode_value(answer) if call.answer_codec is None else call.answer_codec.encode(answer)


def decode_answer_value(call: Call[A], data: Buffer) -> A:
    if call.answer_codec is not None:
        return call.answer_codec.decode(bytes(data))
    value: A = _ANSWERS[call.number].decode(data)
    return value

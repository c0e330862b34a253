"""AMQP errors: the table from Weir's errors to reply codes, texts of close methods, and limits of queue types.

The nearest class in the error's MRO decides. Texts match RabbitMQ's because some clients parse them: `NOT_FOUND -
no queue 'q' in vhost '/'`. Errors for operations that a queue type does not support mostly close the connection.
"""

import re
from typing import NamedTuple

from weir.broker.api.queues import ConsumeRequest, Queue
from weir.model import errors
from weir.model.queues import QueueKind, queue_in_vhost
from weir.wire.amqp.frames import ReplyCode, reply_text
from weir.wire.amqp.methods import Method, basic, exchange, queue

_C = ReplyCode

CODES: dict[type[BaseException], ReplyCode] = {
    errors.WeirError: _C.INTERNAL_ERROR,
    errors.InvalidNameError: _C.PRECONDITION_FAILED,
    errors.WireError: _C.FRAME_ERROR,
    errors.NetworkError: _C.INTERNAL_ERROR,
    errors.BrokerError: _C.INTERNAL_ERROR,
    errors.NotAuthenticatedError: _C.ACCESS_REFUSED,
    errors.NotAuthorisedError: _C.ACCESS_REFUSED,
    errors.NotAllowedError: _C.PRECONDITION_FAILED,
    errors.TooManyError: _C.PRECONDITION_FAILED,
    errors.MessageTooLargeError: _C.PRECONDITION_FAILED,
    errors.QuotaExceededError: _C.PRECONDITION_FAILED,
    errors.StorageFullError: _C.RESOURCE_ERROR,
    errors.ProducersHeldError: _C.PRECONDITION_FAILED,
    # Another broker owns the queue, or it is moving. RabbitMQ answers the same when the queue's node is down.
    errors.TopicNotFoundError: _C.NOT_FOUND,
    errors.TopicClosedError: _C.NOT_FOUND,
    errors.NotOwnerError: _C.NOT_FOUND,
    errors.PeerError: _C.NOT_FOUND,
    errors.StreamNotFoundError: _C.NOT_FOUND,
    errors.StreamClosedError: _C.NOT_FOUND,
    errors.StreamFencedError: _C.NOT_FOUND,
    errors.ReadFailedError: _C.NOT_FOUND,
    errors.TenantNotFoundError: _C.NOT_FOUND,
    errors.NamespaceNotFoundError: _C.NOT_FOUND,
    errors.SubscriptionNotFoundError: _C.NOT_FOUND,
    errors.SubscriptionBusyError: _C.ACCESS_REFUSED,
    errors.ExchangeNotFoundError: _C.NOT_FOUND,
    errors.ExchangeRefusedError: _C.ACCESS_REFUSED,
    errors.ExchangeInUseError: _C.PRECONDITION_FAILED,
    errors.InequivalentExchangeError: _C.PRECONDITION_FAILED,
    errors.ExchangeArgumentError: _C.PRECONDITION_FAILED,
    errors.UnknownExchangeTypeError: _C.COMMAND_INVALID,
    errors.QueueNotFoundError: _C.NOT_FOUND,
    errors.QueueLockedError: _C.RESOURCE_LOCKED,
    errors.QueueInUseError: _C.PRECONDITION_FAILED,
    errors.InequivalentQueueError: _C.PRECONDITION_FAILED,
    errors.QueueArgumentError: _C.PRECONDITION_FAILED,
    errors.FilterError: _C.PRECONDITION_FAILED,
    errors.QueueRefusedError: _C.ACCESS_REFUSED,
}

#: `queue 'q'` and `exchange 'x'`, as in the broker's texts, which contain no vhost.
_NAMED = re.compile(r"\b(queue|exchange) '((?:[^'\\]|\\.)*)'(?! in vhost|: queue limit)")
_INTERNAL = "an internal error; see the broker's log"


class Refusal(NamedTuple):
    """Fields of channel.close or connection.close."""

    code: ReplyCode
    text: str
    class_id: int = 0
    method_id: int = 0


class AmqpRefusal(errors.AmqpError):
    """Closes a channel or connection; the client receives the text unchanged."""


class LoginRefused(AmqpRefusal):
    """Authentication failed; the close names no method as its cause."""


def refuse(code: ReplyCode, what: str) -> AmqpRefusal:
    return AmqpRefusal(what, code=code)


def precondition_failed(what: str) -> AmqpRefusal:
    return AmqpRefusal(what, code=ReplyCode.PRECONDITION_FAILED)


def access_refused(kind: str, name: str, vhost: str, user: str) -> AmqpRefusal:
    """`kind`: queue or exchange."""
    return AmqpRefusal(_refused(kind, name, vhost, user), code=ReplyCode.ACCESS_REFUSED)


def key_refused(key: str, exchange: str, vhost: str, user: str) -> AmqpRefusal:
    what = f"access to topic '{key}' in {_refused('exchange', exchange, vhost, user).removeprefix('access to ')}"
    return AmqpRefusal(what, code=ReplyCode.ACCESS_REFUSED)


def _refused(kind: str, name: str, vhost: str, user: str) -> str:
    return f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"


def code_of(failure: BaseException) -> ReplyCode:
    """The reply code for a failure."""
    if isinstance(failure, errors.AmqpError):
        return ReplyCode(failure.code)
    return next((CODES[kind] for kind in type(failure).__mro__ if kind in CODES), ReplyCode.INTERNAL_ERROR)


def refusal_of(failure: BaseException, method: Method | None, vhost: str, user: str) -> Refusal:
    """The close for a failure. Only the log contains details of bugs and paths of this machine."""
    code = code_of(failure)
    ids = (0, 0) if method is None or isinstance(failure, LoginRefused) else (method.class_id, method.method_id)
    if isinstance(failure, errors.AmqpError) and failure.class_id:
        ids = (failure.class_id, failure.method_id)
    return Refusal(code, reply_text(code, _what(failure, method, vhost, user)), *ids)


def _what(failure: BaseException, method: Method | None, vhost: str, user: str) -> str:
    if not isinstance(failure, errors.WeirError) or isinstance(failure, errors.DiskError):
        return _INTERNAL
    if isinstance(failure, errors.AmqpError):
        return failure.what
    if isinstance(failure, errors.NotAuthorisedError) and method is not None:
        kind, name = _about(method)
        if kind:
            return _refused(kind, name, vhost, user)
    if isinstance(failure, errors.ExchangeNotFoundError) and isinstance(method, basic.Publish):
        return f"no exchange '{method.exchange}' in vhost '{vhost}'"  # keeps line breaks of the name
    return _NAMED.sub(lambda found: f"{found[1]} '{found[2]}' in vhost '{vhost}'", failure.what, count=1)


def _about(method: Method) -> tuple[str, str]:
    """The kind of resource that a method uses (queue, exchange or ""), and its name."""
    match method:
        case basic.Publish():
            return "exchange", method.exchange or "amq.default"
        case exchange.Declare() | exchange.Delete():
            return "exchange", method.exchange
        case exchange.Bind() | exchange.Unbind():
            return "exchange", method.source
        case (
            queue.Declare()
            | queue.Delete()
            | queue.Bind()
            | queue.Unbind()
            | queue.Purge()
            | basic.Consume()
            | basic.Get()
        ):
            return "queue", method.queue
    return "", ""


def unsupported(queue: Queue, what: str, vhost: str) -> AmqpRefusal:
    here = queue_in_vhost(queue.declaration.name, vhost)
    return refuse(ReplyCode.NOT_IMPLEMENTED, f"{what} not supported by {queue.rules.kind.value} queues {here}")


def check_consumable(queue: Queue, request: ConsumeRequest, vhost: str, *, by_channel: bool) -> None:
    """Check that the queue type supports the request: streams require a prefetch and acknowledgements.
    `by_channel`: the channel has a global prefetch, which only classic queues support."""
    kind = queue.rules.kind
    if kind is QueueKind.CLASSIC:
        return
    here = queue_in_vhost(queue.declaration.name, vhost)
    if by_channel:
        raise refuse(ReplyCode.NOT_IMPLEMENTED, f"{here} does not support global qos")
    if kind is QueueKind.STREAM and request.no_ack:
        raise unsupported(queue, "automatic acknowledgement", vhost)
    if kind is QueueKind.STREAM and not request.prefetch:
        raise precondition_failed(f"consumer prefetch count is not set for '{here}'")

"""What a kind of queue cannot do, in RabbitMQ's words: mostly errors of the connection."""

from weir.broker.api import ConsumeRequest, Queue
from weir.gateway.amqp.errors import AmqpRefusal, precondition_failed, refuse
from weir.model.queues import QueueKind, queue_in_vhost
from weir.wire.amqp.codes import ReplyCode


def unsupported(queue: Queue, what: str, vhost: str) -> AmqpRefusal:
    here = queue_in_vhost(queue.declaration.name, vhost)
    return refuse(ReplyCode.NOT_IMPLEMENTED, f"{what} not supported by {queue.rules.kind.value} queues {here}")


def check_consumable(queue: Queue, request: ConsumeRequest, vhost: str, *, by_channel: bool) -> None:
    """A stream is read with a prefetch, and acknowledged. `by_channel`: the prefetch counts for the whole channel,
    which only classic queues can do."""
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

"""The aliveness test: a queue is declared, a message published, and taken again."""

from typing import Any

from weir.admin.amqp.context import Management
from weir.admin.amqp.listing import Item
from weir.admin.amqp.refusals import ManagementError
from weir.admin.routing import Call, Route
from weir.broker.api import QueueMessages
from weir.model.message import Message
from weir.model.queues import QueueDeclaration
from weir.wire.messages import encode_message

#: As in RabbitMQ: in memory, and it stays.
_QUEUE = "aliveness-test"
_PAYLOAD = b"test_message"


class AlivenessRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management

    def routes(self) -> list[Route]:
        return [
            self._management.route(
                "GET",
                "/aliveness-test/{vhost}",
                "Whether messages come and go in a vhost.",
                self._test,
                answer=dict[str, Any],
            )
        ]

    async def _test(self, call: Call) -> Item:
        namespace, queues = await self._management.queues_of(call)
        self._management.check_configure(call.role, namespace, _QUEUE)
        queue = await queues.declare(call.role, QueueDeclaration(_QUEUE, durable=False))
        now_ms = self._management.admin.clock.wall_ms()
        await queue.publish(QueueMessages([encode_message(Message(None, _PAYLOAD, publish_ms=now_ms))], False))
        getter = await queue.getter(call.role)
        try:
            delivery = await getter.take()
            if delivery is None:
                raise ManagementError(503, "the message did not come back")
            first = delivery.batch.base_offset
            getter.ack([(first, first + 1)])
        finally:
            await getter.close()
        return {"status": "ok"}

"""Asking a producer what became of a half message: RecoverOrphanedTransactionCommand on its telemetry stream."""

from typing import Any

from weir.broker.api import HalfCheck
from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.names import resource_of, topic_of
from weir.gateway.rocketmq.transactions.preparing import group_of_producers
from weir.model.topics import TopicName
from weir.wire.formats import messages_of
from weir.wire.rocketmq.handles import PlaceHandle
from weir.wire.rocketmq.message import outgoing_of
from weir.wire.rocketmq.proto import api


class ProducerChecks:
    """Fills `HalfChecker`: one client, asked over its stream."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def check_half(self, check: HalfCheck) -> bool:
        topic, held = check.topic, check.message.id
        partition = topic.partition or 0
        message = outgoing_of(messages_of(check.batch)[0], resource_of(topic), partition=partition, offset=0)
        handle = PlaceHandle(partition, held.ledger, held.entry, message.system_properties.message_id)
        command = api.RecoverOrphanedTransactionCommand(message=message, transaction_id=handle.encode_half())
        return self._client.tell(api.TelemetryCommand(recover_orphaned_transaction_command=command))


def register_checks(call: Call, client: Client, settings: Any) -> None:
    """The producer can be asked about the half messages of the topics that it publishes to."""
    if settings.HasField("publishing"):
        for resource in settings.publishing.topics:
            _register(call, client, topic_of(resource))


def may_be_asked(call: Call, topic: TopicName) -> None:
    """Who sends a half message can be asked about it, whether it has told before that it would."""
    client = call.session.services.clients.find(call.client_id)
    if client is not None and topic not in client.checked:
        _register(call, client, topic)


def _register(call: Call, client: Client, topic: TopicName) -> None:
    client.checked.add(topic)
    checkers = call.session.services.broker.half_checkers
    client.ends.append(checkers.register(group_of_producers(topic), ProducerChecks(client), role=call.role))

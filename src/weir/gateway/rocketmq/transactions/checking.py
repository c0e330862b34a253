"""Asking a producer what became of a half message: RecoverOrphanedTransactionCommand on its telemetry stream."""

from typing import Any

from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.connection.calls import Call


def register_checks(call: Call, client: Client, settings: Any) -> None:
    """The producer can be asked about the half messages of the topics that it publishes to."""

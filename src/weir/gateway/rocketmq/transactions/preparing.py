"""Preparing a half message: who is asked about it, and when first."""

from typing import Any

from weir.model.half import Preparation
from weir.model.topics import TopicName
from weir.wire.rocketmq.proto import ms_of


def group_of_producers(topic: TopicName) -> str:
    """RocketMQ 5 knows no groups of producers: whoever publishes to a topic can be asked."""
    return f"rocketmq:{topic.base}"


def preparation_of(topic: TopicName, said: Any) -> Preparation:
    recovery_ms = None
    if said.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = ms_of(said.orphaned_transaction_recovery_duration)
    return Preparation(group_of_producers(topic), recovery_ms)

"""Preparing a half message: who is asked about it, and when first."""

from typing import Any

from weir.gateway.rocketmq.errors import Refused
from weir.model.topics import TopicName
from weir.wire.rocketmq.proto import api


def preparation_of(topic: TopicName, said: Any) -> Any:
    raise Refused(api.Code.NOT_IMPLEMENTED, "transaction messages are not served yet")

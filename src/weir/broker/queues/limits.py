"""Limits of a namespace, as its property has them: RabbitMQ's limits of a vhost."""

import json
from functools import lru_cache

from weir.broker.registry.registry import Registry
from weir.model.queues import LIMITS_PROPERTY, MAX_CONNECTIONS, MAX_QUEUES, QueueLimits
from weir.model.topics import NamespaceName

_NONE = QueueLimits()


def limits_of(registry: Registry, namespace: NamespaceName) -> QueueLimits:
    """From memory."""
    known = registry.namespaces.find(namespace)
    said = None if known is None else known.properties.get(LIMITS_PROPERTY)
    return _NONE if said is None else _decoded(said)


@lru_cache(1_000)
def _decoded(said: str) -> QueueLimits:
    """What cannot be read is no limit; below 0 is none, either."""
    try:
        found = json.loads(said)
        numbers = [found.get(name) for name in (MAX_CONNECTIONS, MAX_QUEUES)]
    except (ValueError, AttributeError):
        return _NONE
    return QueueLimits(*(one if isinstance(one, int) and one >= 0 else None for one in numbers))

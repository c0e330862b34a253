"""What Weir answers otherwise than RabbitMQ, on purpose: by scenario and place in its answer. `docs/amqp.md` has
the reasons, under "Differences"."""

from typing import Any

#: As RabbitMQ.
SAME: Any = object()
DIFFERENCES: dict[str, dict[str, Any]] = {}

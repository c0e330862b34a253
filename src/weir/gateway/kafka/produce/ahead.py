"""Topics that the requests behind the one at hand write to are loaded while that one waits for its own.

librdkafka sends one request for each partition. After a broker's death those that it had come to others at once,
and each takes a while to be recovered: one after the other that were seconds.
"""

from typing import TYPE_CHECKING, Any

from weir.gateway.kafka.connection.slots import Slot
from weir.gateway.kafka.registry import HANDLERS
from weir.model.errors import WeirError
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.codec import decode_request

if TYPE_CHECKING:
    from weir.gateway.kafka.connection.session import Session

#: Topics that are loaded ahead at the same time for one connection; more wait for their turn.
_AT_ONCE = 64
_BY_ID_SINCE = 13


class LoadsAhead:
    """Of one connection. What cannot be loaded, or read, is told by the request itself, in its turn."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._under_way: dict[tuple[str | bytes, int], None] = {}

    def look(self, slot: Slot) -> None:
        """At a request that waits, once."""
        handler = HANDLERS[ApiKey.PRODUCE]
        if slot.api_key != ApiKey.PRODUCE or slot.frame is None or slot.looked_at:
            return
        slot.looked_at = True
        if not self._session.credentials.valid or not handler.first <= slot.version <= handler.last:
            return
        try:
            request: Any = decode_request(slot.api_key, slot.version, slot.frame)
        except WeirError:
            return
        for topic in request.topic_data:
            name = topic.topic_id if slot.version >= _BY_ID_SINCE else topic.name
            for data in topic.partition_data:
                key = name, data.index
                if len(self._under_way) >= _AT_ONCE:
                    return
                if key not in self._under_way and not self._session.publishing.has(key):
                    self._under_way[key] = None
                    self._session.tasks.spawn(self._load(key), "load ahead")

    async def _load(self, key: tuple[str | bytes, int]) -> None:
        services, role = self._session.services, self._session.role
        try:
            part = await services.catalog.look_known(role, *key)
            await services.broker.topic(part, role=role, create=False)
        except WeirError:
            pass
        finally:
            del self._under_way[key]

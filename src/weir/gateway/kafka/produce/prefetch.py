"""Prefetches topics named by queued produce requests while the current request waits for its own.

librdkafka sends one request for each partition. After a broker fails, its partitions move to other brokers at the
same time, and each needs recovery: one after the other, this would take seconds.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from weir.gateway.kafka.api_table import HANDLERS
from weir.gateway.kafka.responses import Slot
from weir.model.errors import WeirError
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import decode_request

if TYPE_CHECKING:
    from weir.gateway.kafka.session import Session

#: Topics that one connection prefetches concurrently. A request that names more opens them in its own turn, also
#: concurrently.
_AT_ONCE = 64
_BY_ID_SINCE = 13

_Key = tuple[str | bytes, int]


class LoadsAhead:
    """The prefetch of one connection. It ignores failures: the request itself reports them in its turn."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._under_way: dict[_Key, None] = {}
        self._unread: deque[Slot] = deque()

    def look_behind(self, waiting: deque[Slot]) -> None:
        """Scan the queued requests that arrived since the last scan, because the current one is about to wait."""
        new: list[Slot] = []
        for slot in reversed(waiting):
            if slot.looked_at:
                break
            new.append(slot)
        for slot in reversed(new):
            self.look(slot)

    def look(self, slot: Slot) -> None:
        """Prefetch for a request that waits behind one that opens producers."""
        slot.looked_at = True
        if slot.api_key == ApiKey.PRODUCE:
            self._unread.append(slot)
            self._go_on()

    def _go_on(self) -> None:
        while self._unread and len(self._under_way) < _AT_ONCE:
            for key in self._written_to(self._unread.popleft()):
                self._under_way[key] = None
                self._session.tasks.spawn(self._load(key), "load ahead")

    def _written_to(self, slot: Slot) -> list[_Key]:
        """The partitions of a queued request that are not open yet."""
        handler = HANDLERS[ApiKey.PRODUCE]
        known = self._session.credentials.valid and handler.first <= slot.version <= handler.last
        if slot.frame is None or not known:
            return []
        try:
            request: Any = decode_request(slot.api_key, slot.version, slot.frame)
        except WeirError:
            return []
        named: dict[_Key, None] = {
            (topic.topic_id if slot.version >= _BY_ID_SINCE else topic.name, data.index): None
            for topic in request.topic_data
            for data in topic.partition_data
        }
        missing = [key for key in named if key not in self._under_way and not self._session.publishing.has(key)]
        return missing if len(missing) <= _AT_ONCE else []

    async def _load(self, key: _Key) -> None:
        services, role = self._session.services, self._session.role
        try:
            part = await services.catalog.look_known(role, *key)
            await services.broker.topic(part, role=role, create=False)
        except WeirError:
            pass
        finally:
            del self._under_way[key]
        self._go_on()

    def forget(self) -> None:
        self._unread.clear()

"""A reader with a fetch session, who stays to the end: whatever is decided and committed must come to it unasked.

In a session a client names only what has changed, and a broker answers only what is new. A partition of which the
broker forgets that it has grown would never be answered again.
"""

from weir.gateway.kafka.errors import Code
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.client import check_code
from weir.testing.kafka.clients.workload import Who, Worker
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

FOLLOWER = "f0"
_WAIT_MS = 300
_MAX_BYTES = 100_000


class Follower(Worker):
    """Reads what is committed, of all partitions."""

    def __init__(self, who: Who) -> None:
        super().__init__(who)
        self._at = who.shared.followed
        for part in who.shared.parts:
            self._at.setdefault(part, 0)

    async def life(self, handle: str) -> None:
        link = await self.link()
        session, epoch = 0, 0
        named: dict[Part, int] = {}
        while True:
            news = {part: offset for part, offset in self._at.items() if named.get(part) != offset}
            asked = self.story.step
            answer = await link.call(ApiKey.FETCH, 11, _request(session, epoch, news), timeout_s=3.0)
            check_code(answer.error_code)
            session = answer.session_id
            epoch, named = (epoch + 1, dict(self._at)) if session else (0, {})
            for topic in answer.responses:
                for told in topic.partitions:
                    part = Part(topic.topic, told.partition_index)
                    if told.error_code == Code.OFFSET_OUT_OF_RANGE and self.plan.deletes:
                        self._at[part] = (await self.beginning(part, self._at[part])).next
                        continue
                    check_code(told.error_code)
                    fetched = calls.fetched(told, self._at[part], committed=True)
                    self.note_read(handle, part, fetched, committed=True, asked=asked)
                    self._at[part] = fetched.next


def _request(session: int, epoch: int, wanted: dict[Part, int]) -> m.FetchRequest:
    return m.FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=_MAX_BYTES,
        isolation_level=1,
        session_id=session,
        session_epoch=epoch,
        topics=calls.fetch_topics(wanted, _MAX_BYTES),
    )

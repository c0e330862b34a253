"""A reader with a fetch session at each broker that leads something, who stays to the end.

As real clients do: what a broker leads is named in its session once, and again when the reader has moved on in it;
what it leads no longer is taken out. A broker that says nothing of what it leads no longer is waited for in vain.
"""

import asyncio
from dataclasses import dataclass, field

from weir.gateway.kafka.errors import Code
from weir.model.errors import InvariantError, WeirError
from weir.testing.kafka.clients import calls
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.client import check_code
from weir.testing.kafka.clients.workload import Who, Worker
from weir.testing.multibroker.routing import MOVED, RoutedLink
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_WAIT_MS = 300
_MAX_BYTES = 100_000
_PAUSE_S = 0.1


@dataclass
class _Session:
    """With one broker: its number, its next epoch, and of what is named in it the offset and the leader epoch."""

    number: int = 0
    epoch: int = 0
    named: dict[Part, tuple[int, int]] = field(default_factory=dict)


class ClusterFollower(Worker):
    """Reads what is committed, of all partitions."""

    def __init__(self, who: Who) -> None:
        super().__init__(who)
        self._at = who.shared.followed
        self._sessions: dict[str, _Session] = {}
        for part in who.shared.parts:
            self._at.setdefault(part, 0)

    async def life(self, handle: str) -> None:
        while True:
            link = await self.link()
            if not isinstance(link, RoutedLink):
                raise InvariantError("who follows several brokers has a link to each")
            shares = link.led(list(self._at))
            self._sessions = {host: self._sessions.get(host, _Session()) for host in shares}
            if not shares:
                await self.clock.sleep(_PAUSE_S)
            await asyncio.gather(*(self._turn(handle, link, host, share) for host, share in shares.items()))

    async def _turn(self, handle: str, link: RoutedLink, host: str, share: dict[Part, int]) -> None:
        """One fetch. Whatever goes wrong is one broker's, and the session with it begins anew."""
        try:
            await self._fetch(handle, link, host, share)
        except InvariantError:
            raise
        except WeirError as failed:
            self.shared.cluster.world.note("gave up", f"{self.name} {failed}")
            self._sessions[host] = _Session()
            await self.clock.sleep(_PAUSE_S)

    async def _fetch(self, handle: str, link: RoutedLink, host: str, share: dict[Part, int]) -> None:
        session, asked = self._sessions[host], self.story.step
        wanted = {part: (self._at[part], epoch) for part, epoch in share.items()}
        answer = await link.call_at(host, ApiKey.FETCH, 11, _request(session, wanted))
        check_code(answer.error_code)
        session.number = answer.session_id
        session.epoch, session.named = (session.epoch + 1, wanted) if session.number else (0, {})
        for topic in answer.responses:
            for told in topic.partitions:
                part = Part(topic.topic, told.partition_index)
                if told.error_code == Code.OFFSET_OUT_OF_RANGE and self.plan.deletes:
                    self._at[part] = (await self.beginning(part, self._at[part])).next
                elif told.error_code in MOVED:
                    await self.clock.sleep(_PAUSE_S)
                else:
                    check_code(told.error_code)
                    fetched = calls.fetched(told, self._at[part], committed=True)
                    self.note_read(handle, part, fetched, committed=True, asked=asked)
                    self._at[part] = fetched.next


def _request(session: _Session, wanted: dict[Part, tuple[int, int]]) -> m.FetchRequest:
    news = {part: at for part, at in wanted.items() if session.named.get(part) != at}
    topics = calls.fetch_topics({part: offset for part, (offset, _) in news.items()}, _MAX_BYTES)
    for topic, (_, epoch) in zip(topics, news.values(), strict=True):
        topic.partitions[0].current_leader_epoch = epoch
    gone = [part for part in session.named if part not in wanted]
    return m.FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=_MAX_BYTES,
        isolation_level=1,
        session_id=session.number,
        session_epoch=session.epoch,
        topics=topics,
        forgotten_topics_data=[
            m.FetchRequest.ForgottenTopic(topic=part.topic, partitions=[part.number]) for part in gone
        ],
    )

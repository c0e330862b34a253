"""A Kafka client's connections to a whole cluster: each request goes to the broker that the cluster names for it.

As real clients do: leaders are known by metadata, of which what has an older epoch is ignored; coordinators are
asked for; and whoever is told that he asks the wrong one looks again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from weir.gateway.kafka.errors import Code
from weir.model.errors import ConnectionLostError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.kafka.clients.calls import Part
from weir.testing.kafka.clients.client import KafkaLink
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_METADATA, _FIND = 12, 3
_GROUP, _TRANSACTION = 0, 1
#: What a broker says of a partition that it does not lead, or not as of that epoch, or not yet.
MOVED = (
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.KAFKA_STORAGE_ERROR,
)
_MOVED_COORDINATOR = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
#: By which field a request names its group, or its transactional id.
_BY_GROUP = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.TXN_OFFSET_COMMIT,
)
_BY_TRANSACTION = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)


class Leader(NamedTuple):
    """Who leads a partition, since which epoch."""

    host: str
    epoch: int


#: Told of every leader that has answered as such, for the epoch that it was asked for.
Told = Callable[[Part, Leader], None]


class RoutedLink:
    """Connections to as many brokers as have something that was asked for. One that breaks breaks alone."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        rng: Random,
        *,
        brokers: Sequence[str],
        topics: Sequence[str],
        told: Told,
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._rng = rng
        self._brokers = brokers
        self._topics = topics
        self._told = told
        self._links: dict[str, KafkaLink] = {}
        self._leaders: dict[Part, Leader] = {}
        self._coordinators: dict[tuple[int, str], str] = {}
        self._noted: dict[Part, Leader] = {}
        self._stale = True
        self._closed = False
        self._under_way: dict[asyncio.Future[Any], tuple[KafkaLink, ApiKey]] = {}
        #: The broker that answered last.
        self.host = ""

    @property
    def alive(self) -> bool:
        return not self._closed

    async def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            await link.close()

    # --- asking -----------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Metadata is as new as the last refusal, and every leader is connected that can be."""
        if self._stale or any(not self._connected(leader.host) for leader in self._leaders.values()):
            await self._refresh()
        for host in {leader.host: None for leader in self._leaders.values()}:
            try:
                await self._to(host)
            except WeirError:
                self._stale = True

    def ask(self, key: ApiKey, version: int, request: Any) -> "asyncio.Future[Any]":
        """Only what goes to the leader of one partition; and only to one that is connected."""
        leader = self._leaders.get(next(_parts_of(key, request)))
        link = None if leader is None else self._links.get(leader.host)
        if link is None or not link.alive:
            self._stale = True
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(ConnectionLostError("nobody is known to lead the partition"))
            answer.exception()
            return answer
        answer = link.ask(key, version, request)
        self._under_way[answer] = (link, key)
        return answer

    async def within(self, timeout_s: float, answer: "asyncio.Future[Any]") -> Any:
        link, key = self._under_way.pop(answer, (None, ApiKey.PRODUCE))
        if link is None:
            return await answer
        try:
            told = await link.within(timeout_s, answer)
        except WeirError:
            self._stale = True
            raise
        return self._heard(link.host, key, None, told)

    async def call(self, key: ApiKey, version: int, request: Any, *, timeout_s: float = 2.0) -> Any:
        if key is ApiKey.FETCH:
            return await self._fetch(version, request, timeout_s)
        host, coordinated = await self._target(key, request)
        try:
            told = await (await self._to(host)).call(key, version, request, timeout_s=timeout_s)
        except WeirError:
            self._stale = True
            self._coordinators = {which: at for which, at in self._coordinators.items() if at != host}
            raise
        return self._heard(host, key, coordinated, told)

    def led(self, parts: Sequence[Part]) -> dict[str, dict[Part, int]]:
        """By the brokers that lead them: these partitions, with their leader epochs."""
        shares: dict[str, dict[Part, int]] = {}
        for part in parts:
            if part in self._leaders:
                shares.setdefault(self._leaders[part].host, {})[part] = self._leaders[part].epoch
            else:
                self._stale = True
        return shares

    async def call_at(self, host: str, key: ApiKey, version: int, request: Any, *, timeout_s: float = 3.0) -> Any:
        """Ask one broker, whatever it leads."""
        try:
            told = await (await self._to(host)).call(key, version, request, timeout_s=timeout_s)
        except WeirError:
            self._stale = True
            raise
        return self._heard(host, key, None, told)

    async def _fetch(self, version: int, request: m.FetchRequest, timeout_s: float) -> Any:
        """Each leader is asked for what is its; what they answer is put together."""
        if self._stale:
            await self.prepare()
        shares: dict[str, list[Any]] = {}
        asked_of: dict[Part, Leader] = {}
        for topic in request.topics:
            part = Part(topic.topic, topic.partitions[0].partition)
            leader = self._leaders.get(part)
            if leader is None:
                self._stale = True
                raise ConnectionLostError("nobody is known to lead a partition")
            asked_of[part] = leader
            topic.partitions[0].current_leader_epoch = leader.epoch
            shares.setdefault(leader.host, []).append(topic)
        whole: m.FetchResponse | None = None
        for host, topics in shares.items():
            asked = m.FetchRequest(
                max_wait_ms=request.max_wait_ms if len(shares) == 1 else 1,
                min_bytes=request.min_bytes,
                max_bytes=request.max_bytes,
                isolation_level=request.isolation_level,
                session_epoch=-1,
                topics=topics,
            )
            try:
                told = await (await self._to(host)).call(ApiKey.FETCH, version, asked, timeout_s=timeout_s)
            except WeirError:
                self._stale = True
                raise
            self._heard(host, ApiKey.FETCH, None, told)
            for topic in told.responses:
                part = Part(topic.topic, topic.partitions[0].partition_index)
                if not topic.partitions[0].error_code and self._noted.get(part) != asked_of[part]:
                    self._noted[part] = asked_of[part]
                    self._told(part, asked_of[part])
            if whole is None:
                whole = told
            else:
                whole.responses = [*whole.responses, *told.responses]
                whole.error_code = whole.error_code or told.error_code
        return whole

    def _heard(self, host: str, key: ApiKey, coordinated: tuple[int, str] | None, told: Any) -> Any:
        """Note what an answer says of who has what."""
        self.host = host
        codes = set(_codes_in(told))
        if coordinated is not None:
            if codes & set(_MOVED_COORDINATOR):
                self._coordinators.pop(coordinated, None)
        elif codes & set(MOVED):
            self._stale = True
        return told

    # --- whom to ask ------------------------------------------------------------------------------------------

    async def _target(self, key: ApiKey, request: Any) -> tuple[str, tuple[int, str] | None]:
        which: tuple[int, str] | None = None
        if key in _BY_GROUP:
            which = (_GROUP, request.group_id)
        elif key in _BY_TRANSACTION and (name := _transactional_id(request)) is not None:
            which = (_TRANSACTION, name)
        if which is not None:
            if which not in self._coordinators:
                self._coordinators[which] = await self._find(*which)
            return self._coordinators[which], which
        part = next(_parts_of(key, request), None)
        if part is None:
            return self._some_broker(), None
        if self._stale or part not in self._leaders:
            await self._refresh()
        if part not in self._leaders:
            raise ConnectionLostError(f"nobody is known to lead {part}")
        return self._leaders[part].host, None

    async def _find(self, kind: int, name: str) -> str:
        request = m.FindCoordinatorRequest(key=name, key_type=kind)
        told = await (await self._to(self._some_broker())).call(ApiKey.FIND_COORDINATOR, _FIND, request)
        if told.error_code:
            raise ConnectionLostError(f"there is no coordinator of {name}: {Code(told.error_code).name}")
        return str(told.host)

    async def _refresh(self) -> None:
        """Ask anybody who leads what."""
        self._stale = False
        asked = self._some_broker()
        wanted = [m.MetadataRequest.MetadataRequestTopic(name=topic) for topic in self._topics]
        request = m.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        try:
            told = await (await self._to(asked)).call(ApiKey.METADATA, _METADATA, request)
        except WeirError:
            self._stale = True
            raise
        hosts = {broker.node_id: broker.host for broker in told.brokers}
        for topic in told.topics:
            for each in topic.partitions:
                if each.leader_id not in hosts:
                    self._stale = True
                    continue
                part = Part(topic.name, each.partition_index)
                leader = Leader(hosts[each.leader_id], each.leader_epoch)
                known = self._leaders.get(part)
                if known is None or leader.epoch >= known.epoch:
                    self._leaders[part] = leader

    def _some_broker(self) -> str:
        return self._rng.choice(self._brokers)

    def _connected(self, host: str) -> bool:
        return host in self._links and self._links[host].alive

    async def _to(self, host: str) -> KafkaLink:
        if self._closed:
            raise ConnectionLostError("closed by its client")
        if not self._connected(host):
            self._links[host] = await KafkaLink.open(self._runtime, self._name, host)
        return self._links[host]


def _parts_of(key: ApiKey, request: Any) -> Iterator[Part]:
    """The partitions that only their leader can answer for."""
    if key is ApiKey.PRODUCE:
        for topic in request.topic_data:
            yield from (Part(topic.name, data.index) for data in topic.partition_data)
    elif key in (ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS):
        for topic in request.topics:
            yield from (Part(topic.name, each.partition_index) for each in topic.partitions)


def _transactional_id(request: Any) -> str | None:
    name = getattr(request, "transactional_id", None)
    if name is None:
        name = getattr(request, "v3_and_below_transactional_id", None)
    return name


def _codes_in(told: Any) -> Iterator[int]:
    """Every error code of an answer, at whatever depth."""
    if isinstance(told, m.Message):
        for name in told.__struct_fields__:
            value = getattr(told, name)
            if name.endswith("error_code"):
                yield value
            else:
                yield from _codes_in(value)
    elif isinstance(told, list | tuple):
        for each in told:
            yield from _codes_in(each)

"""Consumer groups in bad weather: members crash, hang and come back, answers are lost, the coordinator restarts.

Whatever happens, committed work is not done again, positions do not go back, nothing is skipped; and when the
weather clears, the group divides all of its work among all who are there.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from weir.broker.api.groups import GroupState, JoinRequest, SyncRequest
from weir.broker.broker import Broker
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.coordination.shards import COORDINATOR, CoordinatorShards
from weir.broker.groups.group import GroupSettings
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.standalone import PlainRegistry, SoleOwner
from weir.model.errors import MemberFencedError, MemberIdRequiredError, UnknownMemberError, WeirError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset

PARTS = [TopicName.parse(f"t{number}") for number in range(4)]
ASK = JoinRequest("consumer", {"range": b""}, session_s=6, rebalance_s=5)
STORM_S = 120


@dataclass
class Weather:
    """The coordinator of the moment, and what is known of everyone's work."""

    bench: Any
    rng: Random
    groups: GroupCoordinator
    broker: Broker
    stormy: bool = True
    ended: bool = False
    #: Of each partition: how far committed work was acknowledged, and how far it may have been committed.
    acked: dict[TopicName, int] = field(default_factory=dict)
    tried: dict[TopicName, int] = field(default_factory=dict)
    commits: int = 0
    refused: int = 0

    async def sleep(self, most_s: float) -> None:
        await self.bench.runtime.clock.sleep(self.rng.uniform(0, most_s))

    async def asked(self, call: Any) -> Any:
        """An answer, unless it is lost on the way: then nobody knows what became of the request."""
        lost_after = self.rng.uniform(0, 3) if self.stormy and self.rng.random() < 0.05 else 60
        try:
            async with asyncio.timeout(lost_after):
                return await call
        except TimeoutError:
            return None

    def work_done(self, part: TopicName, start: int, end: int) -> None:
        """The commit of work on [start, end) was acknowledged."""
        assert start >= self.acked.get(part, 0), f"{part}: {start} was committed before, up to {self.acked[part]}"
        assert start <= max(self.acked.get(part, 0), self.tried.get(part, 0)), f"{part}: skipped before {start}"
        self.acked[part] = end
        self.commits += 1


async def opened(bench: Any) -> tuple[Broker, GroupCoordinator]:
    context = await bench.context()
    broker = Broker(context, PlainRegistry(), SoleOwner())
    shards = CoordinatorShards(broker)
    offsets = GroupOffsets(LocalParts(broker, bench.runtime.clock), shards, bench.runtime.clock)
    settings = GroupSettings(min_session_s=1)
    groups = GroupCoordinator(
        bench.runtime,
        shards,
        offsets,
        context.members,
        settings,
    )
    for part in PARTS:
        await broker.load(part)
    return broker, groups


class Member:
    """Joins, works on its share, commits, and goes on; forgets everything when it crashes."""

    def __init__(self, weather: Weather, name: str, *, static: bool) -> None:
        self.weather = weather
        self.instance = name if static else None
        self.id = ""
        self.share: list[TopicName] = []

    async def live(self) -> None:
        weather = self.weather
        while not weather.ended:
            try:
                await self._generation()
            except (UnknownMemberError, MemberFencedError):
                self.id = ""
            except WeirError:
                await weather.sleep(0.5)
            self.share = []
            if weather.stormy and weather.rng.random() < 0.15:
                self.id = ""  # a crash, and a restart
                await weather.sleep(10)

    async def _generation(self) -> None:
        weather = self.weather
        request = replace(ASK, member_id=self.id, instance_id=self.instance, id_first=self.instance is None)
        try:
            joined = await weather.asked(weather.groups.join("g", request))
        except MemberIdRequiredError as told:
            self.id = told.member_id
            return
        if joined is None:
            return
        self.id = joined.member_id
        shares: dict[str, bytes] = {}
        if joined.leader == self.id and not joined.skip:
            ids = [member_id for member_id, _, _ in joined.members]
            for at, member_id in enumerate(ids):
                shares[member_id] = json.dumps(list(range(at, len(PARTS), len(ids)))).encode()
        sync = SyncRequest(joined.generation, self.id, self.instance, assignments=shares)
        synced = await weather.asked(weather.groups.sync("g", sync))
        if synced is not None:
            self.share = [PARTS[index] for index in json.loads(synced.assignment or b"[]")]
            await self._work(joined.generation)

    async def _work(self, generation: int) -> None:
        weather = self.weather
        found = await weather.asked(weather.groups.fetch("g", self.share))
        if found is None:
            return
        at = {part: found[part].offset if part in found else 0 for part in self.share}
        while not weather.ended:
            await weather.sleep(1)
            if weather.stormy and weather.rng.random() < 0.03:
                await weather.sleep(15)  # it hangs, and does not know
            if weather.stormy and weather.rng.random() < 0.03:
                await weather.asked(weather.groups.leave("g", [(self.id, self.instance)]))
                return
            ends = {part: start + weather.rng.randint(1, 5) for part, start in at.items()}
            for part, end in ends.items():
                weather.tried[part] = max(end, weather.tried.get(part, 0))
            try:
                results = await weather.asked(
                    weather.groups.commit(
                        "g",
                        {part: CommittedOffset(end) for part, end in ends.items()},
                        member_id=self.id,
                        generation=generation,
                        instance_id=self.instance,
                    )
                )
            except WeirError:
                weather.refused += 1
                raise
            if results is None:
                return
            for part, failure in results.items():
                if failure is None:
                    weather.work_done(part, at[part], ends[part])
                    at[part] = ends[part]
            if any(results.values()):
                return
            await weather.asked(weather.groups.heartbeat("g", self.id, generation, self.instance))


async def restarts(weather: Weather) -> None:
    """The coordinator's shard moves, and now and then all of the broker."""
    while weather.stormy:
        await weather.sleep(40)
        if weather.rng.random() < 0.5:
            with suppress(WeirError):
                await weather.broker.unload(COORDINATOR)
            continue
        before = weather.groups
        weather.broker, weather.groups = await opened(weather.bench)  # fences the one before
        await before.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_committed_work_is_done_once_and_the_group_recovers(run: Callable, seed: int) -> None:
    async def scenario(bench: Any) -> None:
        broker, groups = await opened(bench)
        weather = Weather(bench, Random(seed), groups, broker)
        members = [Member(weather, f"m{number}", static=number % 2 == 0) for number in range(4)]
        living = [asyncio.ensure_future(member.live()) for member in members]
        nemesis = asyncio.ensure_future(restarts(weather))
        await bench.runtime.clock.sleep(STORM_S)
        weather.stormy = False
        await nemesis
        stormy_commits = weather.commits
        await bench.runtime.clock.sleep(60)
        assert not [task for task in living if task.done()], [task.result() for task in living if task.done()]
        info = await weather.groups.describe("g")
        assert info.state is GroupState.STABLE
        assert sorted(m.member_id for m in info.members) == sorted(m.id for m in members)
        assert sorted(str(part) for member in members for part in member.share) == [str(part) for part in PARTS]
        assert weather.commits > stormy_commits > 20
        weather.ended = True
        await asyncio.gather(*living)
        found = await weather.groups.fetch("g")
        for part in PARTS:
            assert weather.acked[part] <= found[part].offset <= weather.tried[part]
        await weather.groups.close()
        await weather.broker.close()

    run(scenario, seed=seed)

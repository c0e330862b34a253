"""What a supervisor does for a broker whose process has ended."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest
from tests.broker.bundles.conftest import BUNDLES, TTL_S, Cluster, topic_in

from weir.meta.local import MemoryMeta
from weir.runtime.real import real_runtime
from weir.server.supervisor import ChildSpec, Supervisor, unregister
from weir.testing.world.meta import MetaFaults

T = topic_in(BUNDLES[0])


def test_what_a_broker_had_whose_process_has_ended_is_taken_before_its_lease_ends(in_cluster: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in "ab":
            await cluster.broker(name, peer=f"{name}:6660")
        await cluster.settle()
        dead = cluster.chosen(BUNDLES[0])
        left = cluster.other(dead)
        await dead.ownership.own(T)
        dead.meta.faults = MetaFaults(outage=True, starve_leases=True)
        await cluster.settle()
        before = cluster.runtime.clock.monotonic()
        store = MemoryMeta(cluster.core, cluster.runtime)
        assert not await unregister(store, dead.name, 7)  # that is another process of this name
        assert not await unregister(store, "nobody", 6660)
        assert left.ownership.owner_now(T).broker_id == dead.name
        assert await unregister(store, dead.name, 6660)
        assert not await unregister(store, dead.name, 6660)
        await cluster.settle()
        assert (await left.ownership.own(T)).epoch == 1
        assert cluster.runtime.clock.monotonic() - before < TTL_S / 2  # of virtual time
        assert left.ownership.former_brokers() == []  # nobody expects it any more

    in_cluster(scenario)


@pytest.mark.process
async def test_whoever_looks_after_a_process_hears_of_its_death_before_it_is_started_again() -> None:
    supervisor, heard = Supervisor(real_runtime().clock), asyncio.Queue[tuple[str, int]]()

    async def died(name: str) -> None:
        assert not child.running
        heard.put_nowait((name, child.restarts))

    supervisor.on_death = died
    command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    (child,) = await supervisor.add([ChildSpec("one", "broker", command)])
    try:
        os.kill(child.pid, signal.SIGKILL)
        assert await heard.get() == ("one", 0)
    finally:
        await supervisor.close()

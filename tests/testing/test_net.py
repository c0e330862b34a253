"""The simulated network: streams that stay in order, and the ways in which networks fail."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from weir.model.errors import AddressInUseError, ConnectFailedError, ConnectionLostError
from weir.testing.world.connection import HIGH_WATER_BYTES
from weir.testing.world.links import NetFaults
from weir.testing.world.world import simulate

STEADY = NetFaults(latency_s=1.0, jitter_s=0.0, spike_chance=0.0, split_chance=0.0)


async def pair(world, one="one", other="other"):
    """Two ends of a connection between two nodes; they are used through the nodes' runtimes."""
    listener = await world.node(other).runtime.net.listen(other, 0)
    accepting = asyncio.create_task(listener.accept())
    near = await world.node(one).runtime.net.connect(other, listener.port)
    far = await accepting
    listener.close()
    return near, far


async def read_all(connection):
    data = b""
    while piece := await connection.receive():
        data += bytes(piece)
    return data


async def fate(receiving):
    """What became of a receive: its bytes, or "lost"."""
    try:
        return bytes(await receiving)
    except ConnectionLostError:
        return "lost"


def test_bytes_arrive_in_order_however_they_are_cut_and_joined():
    async def scenario(world):
        world.net.set_faults(NetFaults(split_chance=0.5, spike_chance=0.2))
        near, far = await pair(world)
        sent = b""
        pieces = []

        async def read():
            while piece := await far.receive():
                pieces.append(bytes(piece))

        reading = asyncio.create_task(read())
        for i in range(300):
            message = str(i).encode() * (1 + i % 7)
            near.write([message[:1], message[1:]])
            sent += message
            if i % 10 == 0:
                await world.sleep(0.0005)
        near.close()
        await reading
        assert b"".join(pieces) == sent
        return len(pieces)

    assert len({simulate(seed, scenario) for seed in range(5)}) > 1


def test_connections_overtake_each_other():
    async def scenario(world):
        arrivals = []

        async def read(far, name):
            await far.receive()
            arrivals.append(name)

        ends = [await pair(world) for _ in range(4)]
        readers = [asyncio.create_task(read(far, i)) for i, (_, far) in enumerate(ends)]
        for near, _ in ends:
            near.write([b"x"])
        await asyncio.gather(*readers)
        return tuple(arrivals)

    assert len({simulate(seed, scenario) for seed in range(20)}) > 5


def test_latency_is_what_the_link_says_in_each_direction():
    async def scenario(world):
        world.net.set_faults(STEADY)
        world.net.set_faults(replace(STEADY, latency_s=3.0), link=("other", "one"))
        near, far = await pair(world)
        times = [world.now]
        near.write([b"ping"])
        await far.receive()
        times.append(world.now)
        far.write([b"pong"])
        await near.receive()
        times.append(world.now)
        return [later - earlier for earlier, later in pairwise(times)]

    assert simulate(1, scenario) == [1.0, 3.0]


def test_the_most_specific_faults_win_and_can_be_taken_back():
    async def scenario(world):
        world.net.set_faults(replace(STEADY, latency_s=1.0))
        world.net.set_faults(replace(STEADY, latency_s=2.0), node="b")
        world.net.set_faults(replace(STEADY, latency_s=3.0), link=("a", "b"))

        def latency(source, target):
            return world.net.link(source, target).faults.latency_s

        before = [latency("a", "b"), latency("b", "a"), latency("a", "c")]
        world.net.set_faults(None, link=("a", "b"))
        world.net.set_faults(None, node="b")
        return before, [latency("a", "b"), latency("b", "a"), latency("a", "c")]

    assert simulate(1, scenario) == ([3.0, 2.0, 1.0], [1.0, 1.0, 1.0])


def test_a_slow_link_shares_its_bandwidth_between_connections():
    async def scenario(world):
        world.net.set_faults(replace(STEADY, latency_s=0.0, bandwidth=1000.0))
        first, second = await pair(world), await pair(world)
        for near, _ in (first, second):
            near.write([bytes(5000)])
            near.close()
        before = world.now
        await asyncio.gather(read_all(first[1]), read_all(second[1]))
        return world.now - before

    assert simulate(1, scenario) == 10.0


def test_a_receiver_that_does_not_read_holds_up_its_sender():
    async def scenario(world):
        near, far = await pair(world)
        near.write([bytes(1 << 20)])
        draining = asyncio.create_task(near.drain())
        await world.sleep(100.0)
        assert not draining.done()
        near.close()
        data = await read_all(far)
        await draining
        return len(data)

    assert simulate(1, scenario) == 1 << 20


def test_drain_does_not_wait_for_less_than_the_high_water_mark():
    async def scenario(world):
        near, _ = await pair(world)
        near.write([bytes(HIGH_WATER_BYTES)])
        before = world.now
        await near.drain()
        return world.now - before

    assert simulate(1, scenario) == 0.0


def test_a_partition_holds_bytes_back_and_healing_lets_them_through_in_order():
    async def scenario(world):
        near, far = await pair(world)
        near.write([b"one "])
        world.net.partition(["one"], ["other"])
        near.write([b"two "])
        await world.sleep(5.0)
        near.write([b"three"])
        reading = asyncio.create_task(far.receive())
        await world.sleep(5.0)
        assert not reading.done()
        world.net.heal()
        near.close()
        return bytes(await reading) + await read_all(far)

    for seed in range(10):
        assert simulate(seed, scenario) == b"one two three"


def test_a_partition_that_lasts_breaks_connections_for_both_sides():
    async def scenario(world):
        near, far = await pair(world)
        world.net.partition(["one"], ["other"])
        ends = await asyncio.gather(fate(near.receive()), fate(far.receive()))
        return ends, world.now > NetFaults().keepalive_s

    assert simulate(1, scenario) == (["lost", "lost"], True)


def test_a_partition_does_not_concern_nodes_in_no_group_or_in_the_same():
    async def scenario(world):
        world.net.partition(["one", "friend"], ["other"])
        for a, b in (("one", "friend"), ("friend", "one"), ("one", "third"), ("third", "other")):
            near, far = await pair(world, a, b)
            near.write([b"hello"])
            assert bytes(await far.receive())[:1] == b"h"

    simulate(1, scenario)


def test_nobody_connects_across_a_partition():
    async def scenario(world):
        await world.node("other").runtime.net.listen("other", 9)
        world.net.partition(["one"], ["other"])
        with pytest.raises(ConnectFailedError, match="timed out"):
            await world.node("one").runtime.net.connect("other", 9, timeout_s=7.0)
        return world.now

    assert simulate(1, scenario) == 7.0


def test_a_one_way_partition_lets_bytes_through_in_the_other_direction_only():
    async def scenario(world):
        near, far = await pair(world)
        world.net.block("one", "other")
        near.write([b"lost"])
        far.write([b"heard"])
        assert bytes(await near.receive())[:1] == b"h"
        deaf = asyncio.create_task(far.receive())
        await world.sleep(10.0)
        assert not deaf.done()
        await world.sleep(60.0)
        return await fate(deaf)

    for seed in range(10):
        assert simulate(seed, scenario) == "lost"


def test_a_handshake_needs_both_directions():
    async def scenario(world):
        listener = await world.node("other").runtime.net.listen("other", 9)
        accepting = asyncio.create_task(listener.accept())
        world.net.block("other", "one")
        with pytest.raises(ConnectFailedError):
            await world.node("one").runtime.net.connect("other", 9, timeout_s=7.0)
        return await fate((await accepting).receive())

    assert simulate(1, scenario) == "lost"


def test_connections_get_lost_at_random_and_one_side_learns_it_later():
    async def scenario(world):
        world.net.set_faults(NetFaults(reset_chance=0.2))
        near, far = await pair(world)
        moments = {}

        async def watch(name, connection):
            while await fate(connection.receive()) != "lost":
                pass
            moments[name] = world.now

        async def talk():
            for _ in range(1000):
                near.write([b"x"])
                await world.sleep(0.01)

        await asyncio.gather(watch("near", near), watch("far", far), talk())
        return moments["near"] - moments["far"]

    differences = [simulate(seed, scenario) for seed in range(20)]
    assert any(difference > 0.1 for difference in differences)
    assert any(difference < -0.1 for difference in differences)


def test_connects_may_be_refused_at_random():
    async def scenario(world):
        world.net.set_faults(NetFaults(refuse_chance=0.5))
        await world.node("other").runtime.net.listen("other", 9)
        refused = 0
        for _ in range(20):
            try:
                await world.node("one").runtime.net.connect("other", 9)
            except ConnectFailedError:
                refused += 1
        return refused

    assert 0 < simulate(1, scenario) < 20


def test_broken_on_purpose_means_both_sides_lose_every_connection():
    async def scenario(world):
        first, second, third = await pair(world), await pair(world), await pair(world, "one", "third")
        world.net.break_connections("other", "one")
        ends = [end for ends in (first, second) for end in ends]
        fates = [await fate(end.receive()) for end in ends]
        third[0].write([b"fine"])
        return fates, await fate(third[1].receive()) != "lost"

    assert simulate(1, scenario) == (["lost"] * 4, True)


@pytest.mark.parametrize("power_loss", [True, False])
def test_peers_of_a_crashed_node_learn_it_after_a_while(power_loss):
    async def scenario(world):
        near, _ = await pair(world)
        before = world.now
        world.node("other").crash(power_loss=power_loss)
        return await fate(near.receive()), world.now > before

    outcomes = {simulate(seed, scenario) for seed in range(20)}
    if power_loss:
        assert outcomes == {("lost", True)}
    else:
        assert outcomes == {("lost", True), (b"", True)}, "the system of a killed process ends or resets"


def test_bytes_on_their_way_arrive_though_their_sender_is_dead():
    async def scenario(world):
        world.net.set_faults(replace(STEADY, notice_s=1000.0))
        near, far = await pair(world)
        near.write([b"last words"])
        await world.sleep(0.5)
        world.node("one").crash()
        return await fate(far.receive())

    assert simulate(1, scenario) == b"last words"


def test_a_dead_node_sends_nothing_more():
    async def scenario(world):
        near, far = await pair(world)
        world.node("one").crash()
        near.write([b"ghost"])
        near.close()
        return await fate(far.receive())

    for seed in range(10):
        assert simulate(seed, scenario) == "lost"


def test_who_writes_to_a_killed_process_is_reset():
    async def scenario(world):
        near, _ = await pair(world)
        world.node("other").kill()
        with pytest.raises(ConnectionLostError):
            for _ in range(100):
                near.write([b"anyone?"])
                await near.drain()
                await world.sleep(0.1)

    for seed in range(10):
        simulate(seed, scenario)


def test_a_crashed_node_does_not_listen_and_its_port_is_free_after_the_restart():
    async def scenario(world):
        async def listen(runtime):
            await runtime.net.listen("other", 9)

        node = world.node("other")
        await node.start(listen)
        with pytest.raises(AddressInUseError):
            await node.runtime.net.listen("other", 9)
        node.crash()
        with pytest.raises(ConnectFailedError):
            await world.node("one").runtime.net.connect("other", 9)
        slow = world.now > 9.0
        await node.restart()
        await world.node("one").runtime.net.connect("other", 9)
        return slow

    assert {simulate(seed, scenario) for seed in range(20)} == {True, False}, "refused, or no answer at all"


def test_a_cancelled_connect_leaves_no_connection_behind():
    async def scenario(world):
        world.net.set_faults(STEADY)
        listener = await world.node("other").runtime.net.listen("other", 9)
        connecting = asyncio.create_task(world.node("one").runtime.net.connect("other", 9))
        await world.sleep(1.5)
        connecting.cancel()
        return await fate((await listener.accept()).receive())

    assert simulate(1, scenario) == "lost"


def test_a_finished_connection_is_forgotten():
    async def scenario(world):
        for _ in range(5):
            near, far = await pair(world)
            near.close()
            far.close()
        near, far = await pair(world)
        near.abort()
        await world.sleep(10.0)
        return len(world.net._connections)

    assert simulate(1, scenario) == 0


def test_a_node_may_connect_to_itself_by_any_of_its_names():
    async def scenario(world):
        world.net.partition(["one"], ["other"])
        runtime = world.node("one").runtime
        listener = await runtime.net.listen("0.0.0.0", 0)
        for host in ("one", "localhost", "127.0.0.1"):
            near = await runtime.net.connect(host, listener.port)
            far = await listener.accept()
            near.write([b"me"])
            assert (await fate(far.receive()))[:1] == b"m"
        return listener.host

    assert simulate(1, scenario) == "one"

"""What `weir.runtime.interfaces.Resources` says, over every runtime."""

from weir.testing.world.drivers import ConformanceSite, on_every_runtime


@on_every_runtime
async def test_cpu_time_never_goes_back_and_the_loop_has_its_share_of_it(place: ConformanceSite) -> None:
    resources = place.runtime.resources
    before = resources.loop_cpu_s(), resources.cpu_s()
    await place.runtime.clock.sleep(0.001)
    after = resources.loop_cpu_s(), resources.cpu_s()
    assert 0 <= before[0] <= after[0]
    assert 0 <= before[1] <= after[1]
    assert resources.cores() >= 1


@on_every_runtime
async def test_a_process_has_some_memory_and_less_than_it_may_have(place: ConformanceSite) -> None:
    resources = place.runtime.resources
    assert 0 < resources.memory_bytes() < resources.memory_limit_bytes()

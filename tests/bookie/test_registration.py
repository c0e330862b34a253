"""A bookie's cookie and registration in the metadata."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.registration import Registration, RegistrationSettings, check_cookie
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import BookieCookieError, MetaUnavailableError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo, Cookie, decode_bookie_info

B1 = BookieId("b1")
INFO = BookieInfo(B1, "host", 3181, "rack-1")
COOKIE = Cookie(B1, "0123")
WRITABLE, READ_ONLY = keys.bookie_writable(B1), keys.bookie_read_only(B1)


class Place:
    """A metadata store, a faulty connection to it, and an observer's view."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world = world
        self.runtime = runtime
        self.core = MemoryCore(runtime.clock)
        self.observer = MemoryMeta(self.core, runtime)
        self.meta = FaultyMeta(MemoryMeta(self.core, runtime), runtime)

    def registration(self) -> Registration:
        return Registration(self.runtime.clock, self.meta, INFO, RegistrationSettings(ttl_s=10))

    async def registered(self) -> list[str]:
        listings = [await self.observer.list(prefix) for prefix in (keys.BOOKIES_WRITABLE, keys.BOOKIES_READ_ONLY)]
        return [item.key for listing in listings for item in listing.items]


def at_a_place(test: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            await test(Place(world, runtime))

        await world.node("bookie").start(main)

    simulate(1, scenario)


# --- the cookie ---------------------------------------------------------------------------------------------


def test_a_new_disk_is_entered_and_known_from_then_on() -> None:
    async def test(place: Place) -> None:
        await check_cookie(place.meta, COOKIE, holds_ledgers=False)
        await check_cookie(place.meta, COOKIE, holds_ledgers=False)
        await check_cookie(place.meta, COOKIE, holds_ledgers=True)

    at_a_place(test)


def test_a_new_disk_under_an_id_that_is_known_is_refused() -> None:
    async def test(place: Place) -> None:
        await check_cookie(place.meta, COOKIE, holds_ledgers=False)
        with pytest.raises(BookieCookieError, match="another disk"):
            await check_cookie(place.meta, Cookie(B1, "fresh"), holds_ledgers=False)
        await check_cookie(place.meta, COOKIE, holds_ledgers=True)

    at_a_place(test)


def test_a_disk_with_ledgers_that_the_metadata_does_not_know_is_of_another_cluster() -> None:
    async def test(place: Place) -> None:
        with pytest.raises(BookieCookieError, match="does not know it"):
            await check_cookie(place.meta, COOKIE, holds_ledgers=True)
        assert await place.observer.get(keys.cookie(B1)) is None

    at_a_place(test)


def test_a_cookie_whose_entry_was_lost_on_the_way_back_is_known_at_the_next_try() -> None:
    async def test(place: Place) -> None:
        place.meta.faults = MetaFaults(lose_reply=1.0)
        with pytest.raises(MetaUnavailableError):
            await check_cookie(place.meta, COOKIE, holds_ledgers=False)
        place.meta.faults = MetaFaults()
        await check_cookie(place.meta, COOKIE, holds_ledgers=False)

    at_a_place(test)


# --- the registration ---------------------------------------------------------------------------------------


def test_a_bookie_is_registered_where_its_state_says_and_gone_after_close() -> None:
    async def test(place: Place) -> None:
        registration = place.registration()
        await registration.start(writable=True)
        assert await place.registered() == [WRITABLE]
        stored = await place.observer.get(WRITABLE)
        assert stored is not None
        assert decode_bookie_info(stored.value) == INFO
        await registration.close()
        assert await place.registered() == []

    at_a_place(test)


def test_it_follows_the_state_to_read_only_and_back() -> None:
    async def test(place: Place) -> None:
        registration = place.registration()
        await registration.start(writable=False)
        assert await place.registered() == [READ_ONLY]
        registration.set_writable(True)
        await place.runtime.clock.sleep(0.1)
        assert await place.registered() == [WRITABLE]
        registration.set_writable(False)
        await place.runtime.clock.sleep(0.1)
        assert await place.registered() == [READ_ONLY]
        await registration.close()

    at_a_place(test)


def test_a_change_of_state_never_leaves_it_registered_nowhere() -> None:
    async def test(place: Place) -> None:
        registration = place.registration()
        await registration.start(writable=True)
        registration.set_writable(False)
        seen: list[tuple[str, bool]] = []
        listing = await place.observer.list("/weir/bookies/")
        watch = place.observer.watch("/weir/bookies/", since=listing.revision)
        async for change in watch:
            seen.append((change.key, change.value is not None))
            if len(seen) == 2:
                break
        assert seen == [(READ_ONLY, True), (WRITABLE, False)]
        await registration.close()

    at_a_place(test)


def test_a_bookie_that_falls_silent_is_gone_after_its_lease() -> None:
    async def test(place: Place) -> None:
        await place.registration().start(writable=True)
        place.meta.faults = MetaFaults(outage=True)
        await place.runtime.clock.sleep(15)
        assert await place.registered() == []

    at_a_place(test)


def test_after_a_lost_lease_it_registers_again_in_its_present_state() -> None:
    async def test(place: Place) -> None:
        registration = place.registration()
        await registration.start(writable=True)
        place.meta.faults = MetaFaults(outage=True)
        await place.runtime.clock.sleep(15)
        assert await place.registered() == []
        registration.set_writable(False)
        place.meta.faults = MetaFaults()
        await place.runtime.clock.sleep(5)
        assert await place.registered() == [READ_ONLY]
        await place.runtime.clock.sleep(100)
        assert await place.registered() == [READ_ONLY]
        await registration.close()
        assert await place.registered() == []

    at_a_place(test)


def test_a_store_that_loses_requests_and_replies_delays_it_and_no_more() -> None:
    async def test(place: Place) -> None:
        place.meta.faults = MetaFaults(delay_s=0.1, lose_request=0.4, lose_reply=0.4)
        registration = place.registration()
        await registration.start(writable=True)
        for n in range(20):
            registration.set_writable(n % 2 == 0)
            await place.runtime.clock.sleep(1)
        place.meta.faults = MetaFaults()
        await place.runtime.clock.sleep(5)
        assert await place.registered() == [READ_ONLY]
        await registration.close()

    at_a_place(test)


def test_what_a_former_life_left_under_the_other_key_is_cleared() -> None:
    async def test(place: Place) -> None:
        await place.observer.put(READ_ONLY, b"left over")
        registration = place.registration()
        await registration.start(writable=True)
        assert await place.registered() == [WRITABLE]
        await registration.close()

    at_a_place(test)


def test_close_does_not_wait_for_ever_for_a_store_that_is_away() -> None:
    async def test(place: Place) -> None:
        registration = place.registration()
        await registration.start(writable=True)
        place.meta.faults = MetaFaults(outage=True)
        await registration.close()

    at_a_place(test)

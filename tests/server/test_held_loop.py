"""A whole Weir in one process whose event loop stands still for longer than every lease lasts: nothing is lost."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.admin.conftest import Weir

from weir.bookie.registration import RegistrationSettings
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.cluster.registration import OwnershipSettings
from weir.model.topics import TopicName

#: Longer than the leases of brokers, bookies and the leader.
HELD_S = 1 + max(OwnershipSettings().ttl_s, RegistrationSettings().ttl_s, BalanceSettings().lease_s)
NAME = TopicName.parse("persistent://public/default/held")


def unexpired(weir: Weir) -> list[str]:
    """The keys that processes hold under leases, with their versions."""
    meta = weir.up.composed.broker._context.streams.meta

    async def listed() -> list[str]:
        prefixes = ("/weir/brokers/", "/weir/bookies/writable/", "/weir/leaders/", "/weir/auditor")
        listings = [await meta.list(prefix) for prefix in prefixes]
        return [f"{item.key}@{item.version}" for listing in listings for item in listing.items]

    return weir.run(listed)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_loop_that_is_held_loses_no_lease_and_no_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weir")
    weir = Weir(tmp_path)
    try:
        broker = weir.up.composed.broker
        topic = weir.run(lambda: broker.load(NAME))
        before = unexpired(weir)
        assert before

        async def hold() -> None:
            time.sleep(HELD_S)

        weir.run(hold)
        weir.run(lambda: asyncio.sleep(2))  # whoever looks at leases has looked
        assert unexpired(weir) == before
        assert broker.served_now(NAME) is topic
        assert topic.alive
        assert not [record for record in caplog.records if "lease" in record.getMessage()]
    finally:
        weir.stop()

"""Any broker's console works for the whole cluster."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.console.conftest import Visitor

from weir.model.topics import TopicName
from weir.server.addresses import Address
from weir.testing.many_brokers import ManyBrokers

#: Each would be chosen for a bundle of the default namespace at least.
NAMES = ("first", "second", "third")
PARTS = 12


class _At:
    """A broker, as a visitor reaches it."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.up: Any = type("Up", (), {"addresses": {"http": Address(where.hostname or "", where.port or 0)}})()


@pytest.fixture
def visitor(brokers: ManyBrokers) -> Visitor:
    return at(brokers, "first")


def at(brokers: ManyBrokers, name: str) -> Visitor:
    return Visitor(_At(brokers[name].listeners["http"]))  # type: ignore[arg-type]


def test_messages_are_sent_to_and_shown_of_partitions_of_every_broker(
    brokers: ManyBrokers, visitor: Visitor, unique: str
) -> None:
    brokers["second"].do("PUT", f"persistent/public/default/{unique}/partitions", PARTS)
    url = f"/console/topic/persistent/public/default/{unique}"
    whole = TopicName.parse(f"persistent://public/default/{unique}")
    assert visitor.get(url).status == 200
    owners = {brokers["first"].broker.owner_now(whole.at(number)).broker_id for number in range(PARTS)}
    assert owners == {"first", "second", "third"}
    for number in range(PARTS):
        part = f"{url}-partition-{number}"
        assert (
            f"Sent: offset 0 of {unique}-partition-{number}." in visitor.post(f"{part}/produce", value="x").words
        )
    assert f"{PARTS} in all" in visitor.get(url).words
    made = visitor.post(f"{url}/subscriptions/create", subscription="s", **{"from": "earliest"})
    assert f"{PARTS} wait" in made.words


def test_a_session_holds_at_every_broker(brokers: ManyBrokers, visitor: Visitor, unique: str) -> None:
    proof = visitor.get("/console/topics").proof
    other = at(brokers, "third")
    other.cookies = visitor.cookies
    data = f"proof={proof}&namespace=public/default&name={unique}".encode()
    assert other.request("POST", "/console/topics", data).status == 303


def test_the_overview_counts_all_brokers(visitor: Visitor) -> None:
    assert "3 brokers" in visitor.get("/").words

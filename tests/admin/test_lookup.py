"""Lookup over HTTP when there are other brokers."""

from types import SimpleNamespace
from typing import Any

import pytest

from weir.admin.context import AdminContext, ServiceUrls
from weir.admin.topics import Lookup
from weir.broker.api.broker import Owner
from weir.model.errors import NotAllowedError, NotOwnerError
from weir.model.policies import DEFAULT_POLICIES
from weir.model.topics import Domain
from weir.rest.http import Request
from weir.rest.routes import Call

HERE = ServiceUrls(
    {
        "pulsar": "pulsar://here:6650",
        "pulsar_tls": "pulsar+ssl://here:6651",
        "http": "http://here:8080",
        "https": "https://here:8443",
    }
)


def lookup(owner: Owner) -> Any:
    async def owner_of(name: object, *, role: str) -> Owner:
        return owner

    registry = SimpleNamespace(
        namespaces=SimpleNamespace(get=lambda name: None),
        topics=SimpleNamespace(find=lambda name: None),
        policies=lambda where: DEFAULT_POLICIES,
    )
    context: Any = AdminContext(
        SimpleNamespace(),
        SimpleNamespace(owner=owner_of),
        registry,
        SimpleNamespace(),
        SimpleNamespace(check_lookup=lambda role, name: None),
        HERE,
    )
    return Lookup(context, Domain.PERSISTENT).routes()[0]


async def look(owner: Owner, *, authoritative: bool = False, listener: str | None = None) -> Any:
    path = {"tenant": "public", "namespace": "default", "topic": "t"}
    request = Request("GET", "/", {}, {}, b"", "test")
    query = {"authoritative": authoritative, "listenerName": listener}
    return await lookup(owner).action(Call("me", path, query, None, request))


async def test_a_topic_of_this_broker_is_reached_by_every_listener() -> None:
    told = await look(Owner(True))
    assert (told.brokerUrl, told.brokerUrlTls, told.httpUrl, told.httpUrlTls) == (
        HERE.url("pulsar"),
        HERE.url("pulsar_tls"),
        HERE.url("http"),
        HERE.url("https"),
    )


async def test_a_topic_of_another_broker_is_looked_up_there() -> None:
    with pytest.raises(NotOwnerError) as sent:
        await look(Owner(False, {"pulsar": "pulsar://there:6650", "http": "http://there:8080"}))
    assert sent.value.listeners["http"] == "http://there:8080"


async def test_who_was_sent_here_already_is_told_who_has_the_topic() -> None:
    told = await look(
        Owner(False, {"pulsar_tls": "pulsar+ssl://there:6651", "http": "http://there:8080"}), authoritative=True
    )
    assert (told.brokerUrl, told.brokerUrlTls) == (None, "pulsar+ssl://there:6651")


async def test_a_broker_without_http_is_named_at_once() -> None:
    assert (await look(Owner(False, {"pulsar": "pulsar://there:6650"}))).brokerUrl == "pulsar://there:6650"


async def test_of_the_listeners_the_one_that_is_named_is_told_and_another_is_refused() -> None:
    told = await look(Owner(True), listener="pulsar_tls")
    assert (told.brokerUrl, told.brokerUrlTls) == (None, HERE.url("pulsar_tls"))
    assert (told.httpUrl, told.nativeUrl) == (HERE.url("http"), HERE.url("pulsar_tls"))
    there = Owner(False, {"pulsar": "pulsar://there:6650"})
    assert (await look(there, listener="pulsar")).brokerUrl == "pulsar://there:6650"
    for name in ("pulsar_tls", "http", "inside"):
        with pytest.raises(NotAllowedError):
            await look(there, listener=name)

"""Whoever opens a listener to a network without asking clients who they are is told so."""

import pytest

from weir.server.addresses import Address
from weir.server.config.load import load
from weir.server.listeners import open_listeners, warning

WORLD, HERE = Address("0.0.0.0", 9092), Address("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        pytest.param([], {"kafka", "kafka_tls"}, id="as it comes"),
        pytest.param(["auth.authenticate=true"], set(), id="clients say who they are"),
        pytest.param(
            ["auth.authenticate=true", "auth.allow_anonymous=true"], {"kafka", "kafka_tls"}, id="or need not"
        ),
        pytest.param(
            ["auth.authenticate=true", "auth.allow_anonymous=true", "auth.authorise=true"], set(), id="with grants"
        ),
        pytest.param(["tls.client_ca=ca.pem"], {"kafka"}, id="certificates are demanded"),
        pytest.param(["tls.client_ca=ca.pem", "tls.client_auth=optional"], {"kafka", "kafka_tls"}, id="or not"),
    ],
)
def test_a_listener_is_open_if_others_reach_it_and_nobody_is_asked(settings: list[str], found: set[str]) -> None:
    config = load(assignments=settings).config
    addresses = {"kafka": WORLD, "kafka_tls": WORLD, "http": HERE, "peer": WORLD}
    assert set(open_listeners(config, addresses)) == found
    told = warning(config, addresses)
    assert (told is None) == (not found)
    assert told is None or "kafka 0.0.0.0:9092" in told


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        *((host, False) for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3")),
        *((host, True) for host in ("0.0.0.0", "::", "", "10.0.0.5", "weir.example")),
    ],
)
def test_only_loopback_is_out_of_reach(host: str, reached: bool) -> None:
    assert bool(open_listeners(load().config, {"http": Address(host, 80)})) == reached

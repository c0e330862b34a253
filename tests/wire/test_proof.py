"""Proofs of the cluster's secret: who knows it gets in, and nobody learns it or uses another's proof."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import ConfigError, NotAuthenticatedError, WireError
from weir.wire.node.frames import PREFIX_BYTES
from weir.wire.node.proof import MAX_PROOF_BYTES, NONCE_BYTES, ClusterSecret, ProvingClient, ProvingServer

KEY = b"k" * 32
SECRET, OTHER = ClusterSecret(KEY), ClusterSecret(b"o" * 32)
_nonces: Iterator[int] = iter(range(1, 1_000_000))


def nonce() -> bytes:
    return next(_nonces).to_bytes(NONCE_BYTES, "big")


def client(secret: ClusterSecret = SECRET, purpose: str = "peer", meant: str = "b1") -> ProvingClient:
    return ProvingClient(secret, purpose, meant, nonce())


def server(secret: ClusterSecret = SECRET, purpose: str = "peer", name: str = "b1") -> ProvingServer:
    return ProvingServer(secret, purpose, name, nonce())


def talk(asking: ProvingClient, asked: ProvingServer) -> list[bytes]:
    """Let both prove themselves; everything that was said."""
    said = [asking.begin()]
    while not asking.known:
        said.append(asked.receive(said[-1][PREFIX_BYTES:]))
        reply = asking.receive(said[-1][PREFIX_BYTES:])
        if reply is not None:
            said.append(reply)
    return said


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.booleans())
def test_two_that_know_the_secret_know_each_other(name: str, by_name: bool) -> None:
    asking, asked = client(meant=name if by_name else ""), server(name=name)
    said = talk(asking, asked)
    assert asking.known
    assert asked.known
    assert all(len(part) <= MAX_PROOF_BYTES for part in said)


def test_the_secret_is_never_said() -> None:
    assert not any(KEY[:8] in part for part in talk(client(), server()))
    assert "k" * 8 not in repr(SECRET)


def test_nothing_is_said_twice() -> None:
    once, again = talk(client(), server()), talk(client(), server())
    assert not set(once) & set(again)


@pytest.mark.parametrize(
    ("asking", "asked"),
    [
        (client(OTHER), server()),
        (client(purpose="bookie"), server()),
        (client(meant="b2"), server()),
    ],
    ids=["another secret", "another kind of link", "another node"],
)
def test_a_stranger_is_not_let_in_and_gets_no_proof(asking: ProvingClient, asked: ProvingServer) -> None:
    with pytest.raises(NotAuthenticatedError):
        talk(asking, asked)
    assert not asked.known
    assert not asking.known


def test_a_recorded_conversation_opens_no_second_connection() -> None:
    begin, _, proof, _ = talk(client(), server())
    again = server()
    again.receive(begin[PREFIX_BYTES:])
    with pytest.raises(NotAuthenticatedError):
        again.receive(proof[PREFIX_BYTES:])


def test_a_servers_own_proof_reflected_is_none() -> None:
    asking = client()
    challenge = server().receive(asking.begin()[PREFIX_BYTES:])
    proof = asking.receive(challenge[PREFIX_BYTES:])
    assert proof is not None
    with pytest.raises(NotAuthenticatedError):
        asking.receive(proof[PREFIX_BYTES:])


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    asking, false = client(), server(OTHER)
    challenge = false.receive(asking.begin()[PREFIX_BYTES:])
    asking.receive(challenge[PREFIX_BYTES:])
    with pytest.raises(NotAuthenticatedError, match="secret"):
        asking.receive(challenge[PREFIX_BYTES:])


def test_what_does_not_begin_with_a_proof_is_refused() -> None:
    with pytest.raises(WireError):
        server().receive(b"GET / HTTP/1.1\r\n" * 3)


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        ClusterSecret(b"hunter2")
    assert "hunter2" not in str(refused.value)

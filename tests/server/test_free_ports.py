"""Ports are kept for processes that are not there yet, or are being started again."""

import socket
from collections.abc import Iterator

import pytest

from weir.server.supervisor import HeldPorts


@pytest.fixture
def held() -> Iterator[HeldPorts]:
    ports = HeldPorts()
    yield ports
    ports.close()


def listening(port: int) -> socket.socket:
    """As servers do it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen()
    return made


def test_a_port_is_chosen_once_and_its_server_may_come_and_go(held: HeldPorts) -> None:
    (port,) = held.choose([0])
    other = HeldPorts()
    for _ in range(2):
        (another,) = other.choose([port])
        assert another != port
        with listening(port), socket.create_connection(("127.0.0.1", port)):
            assert other.choose([port]) != [port]
    with pytest.raises(OSError), socket.socket() as client:
        client.bind(("127.0.0.1", port))
    other.close()


def test_ports_that_were_chosen_before_are_held_again(held: HeldPorts) -> None:
    chosen = held.choose([0, 0])
    held.close()
    again = HeldPorts()
    again.hold(chosen)
    assert held.choose(chosen) != chosen
    again.close()


def test_a_port_that_somebody_has_is_told(held: HeldPorts) -> None:
    (free,) = held.choose([0])
    held.close()
    with listening(0) as server:
        taken = server.getsockname()[1]
        assert held.hold([taken, free]) == [taken]

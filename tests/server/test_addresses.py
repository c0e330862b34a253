"""Addresses as people write them."""

import pytest

from weir.model.errors import ConfigError
from weir.server.addresses import Address, advertised, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:3181", Address("127.0.0.1", 3181)),
        ("bookie.example:0", Address("bookie.example", 0)),
        ("[::1]:3181", Address("::1", 3181)),
        (":3181", Address("", 3181)),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:70000", "::1:3181", "host:-1", "host:²"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_address(text)


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("host:1", "[::1]:3181"):
        assert str(parse_address(text)) == text


def test_others_are_told_what_was_asked_for_else_where_it_listens() -> None:
    listening = Address("10.0.0.1", 4000)
    assert advertised(listening, None) == listening
    assert advertised(listening, Address("b1.example", 9)) == Address("b1.example", 9)
    assert advertised(listening, Address("b1.example", 0)) == Address("b1.example", 4000)


def test_nobody_is_told_to_connect_to_all_interfaces() -> None:
    assert advertised(Address("0.0.0.0", 4000), None).host not in ("", "0.0.0.0")

"""Pieces of what a fetch gave: each message once, and nothing fetched twice."""

from typing import Any

import pytest

from weir.client.kafka.cluster import Partition
from weir.connect import reader
from weir.connect.reader import Piece, Pieces
from weir.connect.task import Message

ONE, TWO = Partition("orders", 0), Partition("orders", 1)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Partition, int]]:
    """Each gives up to ten messages, at every second offset, and a marker behind them."""
    found: list[tuple[Partition, int]] = []

    def read(_: Any, partition: Partition, offset: int, *, topic_id: str = "") -> Piece:
        found.append((partition, offset))
        places = range(offset + offset % 2, offset + 20, 2)
        messages = [(at, Message(partition.topic, None, b"%d" % at, 0, (), partition.index)) for at in places]
        return Piece(partition, messages, offset + 21, 1000)

    monkeypatch.setattr(reader, "read_piece", read)
    return found


def offsets(piece: Piece) -> list[int]:
    return [at for at, _ in piece.messages]


def test_what_one_fetch_gave_is_handed_out_in_pieces(fetches: list[tuple[Partition, int]]) -> None:
    pieces = Pieces(None)  # type: ignore[arg-type]
    at, found = 0, []
    for _ in range(3):
        piece = pieces.read(ONE, at, 4)
        found += offsets(piece)
        at = piece.next_offset
    assert found == list(range(0, 20, 2))
    assert at == 21  # behind the marker
    assert fetches == [(ONE, 0)]


def test_what_was_begun_is_read_to_its_end_before_another_has_its_turn(
    fetches: list[tuple[Partition, int]],
) -> None:
    pieces = Pieces(None)  # type: ignore[arg-type]
    assert pieces.of([ONE, TWO], 1) == TWO
    pieces.read(ONE, 0, 4)
    assert pieces.of([ONE, TWO], 1) == ONE
    assert pieces.of([TWO], 1) == TWO


def test_whoever_asks_for_another_place_does_not_get_the_rest(fetches: list[tuple[Partition, int]]) -> None:
    pieces = Pieces(None)  # type: ignore[arg-type]
    pieces.read(ONE, 0, 4)
    assert offsets(pieces.read(ONE, 2, 4)) == [2, 4, 6, 8]  # what could not be written is read again
    assert offsets(pieces.read(TWO, 9, None))[0] == 10
    assert fetches == [(ONE, 0), (ONE, 2), (TWO, 9)]

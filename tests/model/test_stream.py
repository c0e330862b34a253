"""A chain of ledgers as a value."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import InvariantError
from weir.model.ids import LedgerId
from weir.model.stream import Chain
from weir.wire.stream import decode_chain, encode_chain


def chain_of(counts: list[int], *, open_last: bool = False) -> Chain:
    chain = Chain()
    for number, count in enumerate(counts):
        chain = chain.with_opened(LedgerId(number + 10), number * 1000)
        chain = chain.with_closed(chain.end_offset + count, count * 7, number * 1000 + 1)
    return chain.with_opened(LedgerId(99), 5) if open_last else chain


@given(st.lists(st.integers(1, 50), max_size=8), st.booleans())
def test_offsets_run_densely_through_the_ledgers(counts: list[int], open_last: bool) -> None:
    chain = chain_of(counts, open_last=open_last)
    assert chain.end_offset == sum(counts)
    for offset in range(sum(counts)):
        span = chain.span_at(offset)
        assert span is not None
        assert span.first_offset <= offset
        assert span.end_offset is not None
        assert offset < span.end_offset
    beyond = chain.span_at(sum(counts))
    assert (beyond is not None) == open_last


def test_a_ledger_that_stayed_empty_leaves_the_chain() -> None:
    chain = chain_of([5], open_last=True)
    assert chain.with_closed(5, 0, 9) == chain_of([5])


def test_a_second_open_ledger_is_refused() -> None:
    with pytest.raises(InvariantError):
        chain_of([5], open_last=True).with_opened(LedgerId(1), 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 500))
def test_trimming_drops_whole_ledgers_and_never_moves_back(counts: list[int], start: int) -> None:
    chain = chain_of(counts, open_last=True).trimmed(start)
    assert chain.start_offset == start
    assert all(span.end_offset is None or span.end_offset > start for span in chain.spans)
    assert chain.trimmed(0) == chain
    assert chain.spans[-1].ledger_id == 99


@given(st.lists(st.integers(1, 50), max_size=4), st.booleans(), st.dictionaries(st.text(), st.text()))
def test_a_chain_survives_the_metadata_store(
    counts: list[int], open_last: bool, properties: dict[str, str]
) -> None:
    chain = chain_of(counts, open_last=open_last)
    chain = Chain(chain.spans, 3, None, LedgerId(4), properties, epoch=5)
    assert decode_chain(encode_chain(chain)) == chain


def led_chain() -> Chain:
    """Epoch 2 wrote 0 to 10, 5 wrote 10 to 25 into two ledgers, 7 holds it and wrote nothing."""
    chain = Chain()
    for number, (leader, count) in enumerate([(2, 10), (5, 5), (5, 10)]):
        chain = replace(chain, leader=leader).with_opened(LedgerId(number), 0)
        chain = chain.with_closed(chain.end_offset + count, count, 0)
    return replace(chain, leader=7)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (2, (2, 10)),
        (3, (2, 10)),
        (5, (5, 25)),
        (6, (5, 25)),
        (7, (7, 25)),
        (8, (-1, -1)),
    ],
)
def test_a_leader_epoch_ends_where_the_next_one_began(asked: int, told: tuple[int, int]) -> None:
    assert led_chain().leader_end(asked, 25) == told
    assert decode_chain(encode_chain(led_chain())) == led_chain()


def test_each_offset_was_written_in_one_leader_epoch() -> None:
    assert [led_chain().leader_at(offset) for offset in (0, 9, 10, 24, 25)] == [2, 2, 5, 5, 7]

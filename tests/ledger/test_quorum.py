"""Bit-mask arithmetic agrees with the ledger metadata's own striping."""

import itertools

import pytest

from weir.ledger.quorum import Stripes
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum

QUORUMS = [
    Quorum(ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def ledger(quorum: Quorum) -> LedgerMetadata:
    bookies = tuple(BookieId(str(i)) for i in range(quorum.ensemble))
    return LedgerMetadata(LedgerId(1), quorum, (Fragment(EntryId(0), bookies),))


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_a_slot_gets_exactly_the_entries_whose_write_set_names_its_bookie(quorum: Quorum) -> None:
    stripes, metadata = Stripes(quorum), ledger(quorum)
    entries = [(EntryId(i), b"") for i in range(3, 20)]
    for slot in range(quorum.ensemble):
        expected = [e for e in entries if BookieId(str(slot)) in metadata.write_set(e[0])]
        assert list(stripes.share(slot, entries)) == expected


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_a_run_is_held_when_every_entry_has_an_ack_quorum_within_its_write_set(quorum: Quorum) -> None:
    stripes, metadata = Stripes(quorum), ledger(quorum)
    for by, first, count in itertools.product(range(1 << quorum.ensemble), (0, 1, 7), (1, 2, 9)):
        expected = all(
            sum(by >> int(b) & 1 for b in metadata.write_set(EntryId(e))) >= quorum.ack
            for e in range(first, first + count)
        )
        assert stripes.held(by, EntryId(first), count) is expected


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_fences_cover_exactly_when_no_write_set_has_an_ack_quorum_left(quorum: Quorum) -> None:
    stripes, metadata = Stripes(quorum), ledger(quorum)
    for fenced in range(1 << quorum.ensemble):
        unfenced_could_acknowledge = any(
            sum(not fenced >> int(b) & 1 for b in metadata.write_set(EntryId(e))) >= quorum.ack
            for e in range(quorum.ensemble)
        )
        assert stripes.covered(fenced) is not unfenced_could_acknowledge


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_enough_bookies_are_alive_exactly_when_every_write_set_keeps_an_ack_quorum(quorum: Quorum) -> None:
    stripes, metadata = Stripes(quorum), ledger(quorum)
    for alive in range(1 << quorum.ensemble):
        expected = all(
            sum(alive >> int(b) & 1 for b in metadata.write_set(EntryId(e))) >= quorum.ack
            for e in range(quorum.ensemble)
        )
        assert stripes.suffices(alive) is expected

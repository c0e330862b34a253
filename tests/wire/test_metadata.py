"""Metadata values as JSON: each comes back, and what is not theirs is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.wire.metadata import (
    BookieInfo,
    Cookie,
    decode_bookie_info,
    decode_cookie,
    decode_ledger,
    encode_bookie_info,
    encode_cookie,
    encode_ledger,
)

names = st.text(max_size=20)
ids = st.integers(0, 2**63 - 1)
quorums = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)).map(
    lambda n: Quorum(n[0] + n[1] + n[2], n[0] + n[1], n[0])
)


def fragments(ensemble: int) -> st.SearchStrategy[Fragment]:
    bookies = st.lists(names.map(BookieId), min_size=ensemble, max_size=ensemble).map(tuple)
    return st.builds(Fragment, ids.map(EntryId), bookies)


ledgers = quorums.flatmap(
    lambda quorum: st.builds(
        LedgerMetadata,
        ledger_id=ids.map(LedgerId),
        quorum=st.just(quorum),
        fragments=st.lists(fragments(quorum.ensemble), min_size=1, max_size=4).map(tuple),
        state=st.sampled_from(LedgerState),
        last_entry=st.integers(-1, 2**63 - 1).map(EntryId),
        length=ids,
        created_ms=ids,
    )
)


@given(ledgers)
def test_a_ledger_comes_back(ledger: LedgerMetadata) -> None:
    assert decode_ledger(encode_ledger(ledger)) == ledger


@pytest.mark.parametrize("bookies", [(), ("b1",), ("b1", "b2", "b3")])
def test_a_ledger_whose_fragment_is_no_ensemble_is_refused(bookies: tuple[str, ...]) -> None:
    fragment = Fragment(EntryId(0), tuple(map(BookieId, bookies)))
    for broken in ((fragment,), ()):
        with pytest.raises(WireError):
            decode_ledger(encode_ledger(LedgerMetadata(LedgerId(1), Quorum(2, 2, 1), broken)))


@given(names, names, st.integers(0, 65535), names)
def test_a_registration_comes_back(bookie_id: str, host: str, port: int, rack: str) -> None:
    info = BookieInfo(BookieId(bookie_id), host, port, rack)
    assert decode_bookie_info(encode_bookie_info(info)) == info


@given(names, names)
def test_a_cookie_comes_back(bookie_id: str, instance: str) -> None:
    cookie = Cookie(BookieId(bookie_id), instance)
    assert decode_cookie(encode_cookie(cookie)) == cookie


@pytest.mark.parametrize("decode", [decode_ledger, decode_bookie_info, decode_cookie])
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"\xff\xfe", b'{"v":1}', b"[" * 100_000])
def test_what_is_no_such_value_is_refused(decode: object, data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)  # type: ignore[operator]


@pytest.mark.parametrize("decode", [decode_ledger, decode_bookie_info, decode_cookie])
def test_a_later_version_is_named_as_such(decode: object) -> None:
    with pytest.raises(UnknownVersionError):
        decode(json.dumps({"v": 2}).encode())  # type: ignore[operator]

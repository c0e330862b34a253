"""The bookie protocol's codec: every value comes back, and what is not exactly right is refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model import errors
from weir.model.errors import ChecksumError, UnknownVersionError, WeirError, WireError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.wire import bookie as codec
from weir.wire.bookie import (
    ERRORS,
    Hello,
    Welcome,
    choose_version,
    decode_hello,
    decode_welcome,
    encode_hello,
    encode_welcome,
    error_from,
    failed_from,
)
from weir.wire.entry import encode_entry
from weir.wire.node.frames import FrameSplitter, frame

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
ids = st.integers(0, 2**63 - 1)
confirmed = st.integers(-1, 2**63 - 1)
names = st.text(max_size=60).map(BookieId)
Entries = list[tuple[EntryId, bytes]]


def body_of(*buffers: bytes | bytearray | memoryview) -> memoryview:
    """The body of the one frame that the buffers make, through the splitter, as it arrives in life."""
    (body,) = FrameSplitter(codec.MAX_FRAME_BYTES).feed(b"".join(buffers))
    return body


@st.composite
def entries_of(draw: st.DrawFn, ledger_id: int) -> Entries:
    parts = draw(st.lists(st.tuples(ids, confirmed, ids, st.binary(max_size=40)), max_size=5))
    return [(EntryId(e), encode_entry(ledger_id, e, lac, length, payload)) for e, lac, length, payload in parts]


@given(u64, ids, st.booleans(), st.data())
def test_an_add_comes_back(request_id: int, ledger_id: int, recovery: bool, data: st.DataObject) -> None:
    entries = data.draw(entries_of(ledger_id))
    body = body_of(*codec.encode_add(request_id, LedgerId(ledger_id), entries, recovery=recovery))
    assert codec.decode_request(body) == codec.Add(request_id, LedgerId(ledger_id), entries, recovery)  # type: ignore[arg-type]


@given(u64, ids, ids, ids, u32)
def test_a_read_comes_back(request_id: int, ledger_id: int, one: int, other: int, max_bytes: int) -> None:
    read = codec.Read(
        request_id, LedgerId(ledger_id), EntryId(min(one, other)), EntryId(max(one, other)), max_bytes
    )
    assert codec.decode_request(body_of(codec.encode_read(*read))) == read


@given(u64, ids, confirmed, u32)
def test_a_poll_comes_back(request_id: int, ledger_id: int, after: int, timeout_ms: int) -> None:
    poll = codec.Poll(request_id, LedgerId(ledger_id), EntryId(after), timeout_ms)
    assert codec.decode_request(body_of(codec.encode_poll(*poll))) == poll


@given(u64, ids)
def test_requests_of_a_ledger_alone_come_back_each_as_its_kind(request_id: int, ledger_id: int) -> None:
    ledger = LedgerId(ledger_id)
    for encode, kind in (
        (codec.encode_last_confirmed, codec.LastConfirmed),
        (codec.encode_fence, codec.Fence),
        (codec.encode_delete, codec.Delete),
    ):
        got = codec.decode_request(body_of(encode(request_id, ledger)))
        assert type(got) is kind
        assert got == (request_id, ledger)


@given(u64, ids, confirmed)
def test_confirm_and_ping_come_back(request_id: int, ledger_id: int, last: int) -> None:
    confirm = codec.Confirm(LedgerId(ledger_id), EntryId(last))
    assert codec.decode_request(body_of(codec.encode_confirm(*confirm))) == confirm
    assert codec.decode_request(body_of(codec.encode_ping(request_id))) == codec.Ping(request_id)


@given(st.lists(u64, max_size=50))
def test_a_done_comes_back(request_ids: list[int]) -> None:
    assert codec.decode_response(body_of(codec.encode_done(request_ids))) == codec.Done(tuple(request_ids))


@given(u64, ids, confirmed, st.data())
def test_entries_come_back(request_id: int, ledger_id: int, last: int, data: st.DataObject) -> None:
    entries = data.draw(entries_of(ledger_id))
    body = body_of(*codec.encode_entries(request_id, LedgerId(ledger_id), EntryId(last), entries))
    expected = codec.Entries(request_id, LedgerId(ledger_id), EntryId(last), entries)  # type: ignore[arg-type]
    assert codec.decode_response(body) == expected


@given(u64, confirmed)
def test_a_confirmed_comes_back(request_id: int, last: int) -> None:
    got = codec.decode_response(body_of(codec.encode_confirmed(request_id, EntryId(last))))
    assert got == codec.Confirmed(request_id, EntryId(last))


@given(u64, u16, st.text(max_size=100), st.text(max_size=100))
def test_a_failure_comes_back(request_id: int, code: int, what: str, hint: str) -> None:
    failed = codec.Failed(request_id, code, what, hint)
    assert codec.decode_response(body_of(codec.encode_failed(failed))) == failed


def test_a_long_text_of_a_failure_is_cut_between_characters() -> None:
    got = codec.decode_response(body_of(codec.encode_failed(codec.Failed(1, 1, "ä" * 5000, "x" + "ä" * 5000))))
    assert got == codec.Failed(1, 1, "ä" * 512, "x" + "ä" * 511)


@given(names, st.integers(1, 2**16 - 1), st.integers(1, 2**16 - 1), u32)
def test_a_hello_comes_back(name: BookieId, one: int, other: int, features: int) -> None:
    hello = Hello(name, min(one, other), max(one, other), features)
    assert decode_hello(body_of(encode_hello(hello))) == hello


@given(names, u16, u32, u32)
def test_a_welcome_comes_back(name: BookieId, version: int, features: int, max_frame: int) -> None:
    welcome = Welcome(name, version, features, max_frame)
    assert decode_welcome(body_of(encode_welcome(welcome))) == welcome


def test_a_hello_may_be_answered_by_a_failure() -> None:
    failed = codec.Failed(0, 35, "too old", "upgrade")
    assert decode_welcome(body_of(codec.encode_failed(failed))) == failed


def test_a_version_is_chosen_from_the_clients_range_or_refused() -> None:
    assert choose_version(Hello(BookieId(""), 1, 7)) == 1
    with pytest.raises(UnknownVersionError, match="2 to 7"):
        choose_version(Hello(BookieId(""), 2, 7))


# --- errors -------------------------------------------------------------------------------------------------


def _bookie_errors() -> list[type[WeirError]]:
    return [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.BookieError)]


@pytest.mark.parametrize("error", _bookie_errors(), ids=lambda e: e.__name__)
def test_every_bookie_error_travels_as_itself(error: type[WeirError]) -> None:
    back = error_from(failed_from(7, error("what happened", hint="what to do")))
    assert type(back) is error
    assert (back.what, back.hint) == ("what happened", "what to do")


def test_codes_are_for_ever() -> None:
    assert {code: error.__name__ for code, error in ERRORS.items()} == {
        1: "BookieError",
        2: "NoSuchLedgerError",
        3: "NoSuchEntryError",
        4: "LedgerFencedError",
        5: "EntryCorruptError",
        6: "BookieReadOnlyError",
        7: "BookieBusyError",
        8: "BookieUnavailableError",
        9: "BookieCookieError",
        10: "JournalCorruptError",
        11: "EntryLogMissingError",
        12: "EntryInDoubtError",
        13: "LedgersUnknownError",
        32: "WireError",
        33: "FrameTooLargeError",
        34: "ChecksumError",
        35: "UnknownVersionError",
    }


def test_an_error_without_a_code_goes_as_its_nearest_ancestor() -> None:
    class StrangeFence(errors.LedgerFencedError):
        pass

    assert type(error_from(failed_from(1, StrangeFence("x")))) is errors.LedgerFencedError
    assert type(error_from(failed_from(1, errors.DiskFullError("x")))) is errors.BookieError


def test_an_error_that_is_no_weir_error_says_nothing_of_the_insides() -> None:
    failed = failed_from(1, KeyError("/secret/path"))
    assert "secret" not in failed.what + failed.hint


def test_a_code_of_a_later_version_is_a_plain_bookie_error() -> None:
    assert type(error_from(codec.Failed(1, 9999, "new", ""))) is errors.BookieError


# --- what is refused ----------------------------------------------------------------------------------------

ENTRY = encode_entry(5, 0, -1, 3, b"abc")


def _add(count: int, *entries: bytes, flags: int = 0, ledger_id: int = 5) -> bytes:
    return frame(codec._ADD.pack(codec.FrameType.ADD, flags, 1, ledger_id, count))[4:] + b"".join(entries)


REFUSED_REQUESTS: dict[str, bytes] = {
    "nothing": b"",
    "a checksum without a kind": b"\0\0\0\0",
    "an unknown kind": frame(b"\x3f" + bytes(8))[4:],
    "a response": codec.encode_done([1])[4:],
    "trailing bytes": codec.encode_ping(1)[4:] + b"\0",
    "missing bytes": codec.encode_ping(1)[4:-1],
    "an add with unknown flags": _add(1, ENTRY, flags=2),
    "an add of fewer entries than it has": _add(0, ENTRY),
    "an add of more entries than it has": _add(2, ENTRY),
    "an add that ends within an entry": _add(1, ENTRY[:-1]),
    "an add that ends within an entry's header": _add(2, ENTRY, ENTRY[:20]),
    "an add of another ledger's entry": _add(1, ENTRY, ledger_id=6),
    "an add of an entry id out of range": _add(1, encode_entry(5, 2**63, -1, 0, b"")),
    "a ledger id out of range": frame(codec._LEDGER.pack(codec.FrameType.FENCE, 1, 2**63))[4:],
    "a read from a negative entry": frame(codec._READ.pack(codec.FrameType.READ, 1, 5, -1, 3, 9))[4:],
    "a read of a range upside down": frame(codec._READ.pack(codec.FrameType.READ, 1, 5, 4, 3, 9))[4:],
    "a poll after less than no entry": frame(codec._POLL.pack(codec.FrameType.POLL, 1, 5, -2, 9))[4:],
    "a confirm of less than no entry": frame(codec._CONFIRM.pack(codec.FrameType.CONFIRM, 5, -2))[4:],
}

REFUSED_RESPONSES: dict[str, bytes] = {
    "nothing": b"",
    "a request": codec.encode_ping(1)[4:],
    "an unknown kind": frame(b"\xff" + bytes(8))[4:],
    "a done of more than it names": frame(codec._DONE.pack(codec.FrameType.DONE, 2) + bytes(8))[4:],
    "a done of half a request": frame(codec._DONE.pack(codec.FrameType.DONE, 1) + bytes(7))[4:],
    "a confirmed less than no entry": frame(codec._CONFIRMED.pack(codec.FrameType.CONFIRMED, 1, -2))[4:],
    "texts longer than the frame": frame(codec._FAILED.pack(codec.FrameType.FAILED, 1, 1, 2, 2) + b"abc")[4:],
    "texts longer than allowed": frame(codec._FAILED.pack(codec.FrameType.FAILED, 1, 1, 2000, 0) + b"a" * 2000)[
        4:
    ],
    "texts that are no UTF-8": frame(codec._FAILED.pack(codec.FrameType.FAILED, 1, 1, 1, 0) + b"\xff")[4:],
    "entries of another ledger": frame(codec._ENTRIES.pack(codec.FrameType.ENTRIES, 1, 6, 0, 1))[4:] + ENTRY,
}


@pytest.mark.parametrize("body", REFUSED_REQUESTS.values(), ids=REFUSED_REQUESTS.keys())
def test_a_request_that_is_not_exactly_right_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode_request(body)


@pytest.mark.parametrize("body", REFUSED_RESPONSES.values(), ids=REFUSED_RESPONSES.keys())
def test_a_response_that_is_not_exactly_right_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        codec.decode_response(body)


FIELD_FRAMES: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "add": (b"".join(codec.encode_add(1, LedgerId(5), []))[4:], codec.decode_request),
    "fence": (codec.encode_fence(1, LedgerId(5))[4:], codec.decode_request),
    "done": (codec.encode_done([1, 2, 3])[4:], codec.decode_response),
    "failed": (codec.encode_failed(codec.Failed(1, 4, "fenced", ""))[4:], codec.decode_response),
    "hello": (encode_hello(Hello(BookieId("b1")))[4:], decode_hello),
    "welcome": (encode_welcome(Welcome(BookieId("b1"), 1, 0, 9))[4:], decode_welcome),
}


@pytest.mark.parametrize("name", FIELD_FRAMES)
def test_no_single_flipped_bit_in_the_fields_goes_unseen(name: str) -> None:
    body, decode = FIELD_FRAMES[name]
    decode(body)
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode(bytes(flipped))


def test_a_flipped_request_id_is_a_checksum_error() -> None:
    body = bytearray(codec.encode_done([1])[4:])
    body[-8] ^= 2
    with pytest.raises(ChecksumError):
        codec.decode_response(body)


@pytest.mark.parametrize(
    "body",
    [
        frame(b"HTTP" + bytes(9))[4:],
        frame(b"WBKE\x02\x00\x01\x00" + bytes(5))[4:],
        frame(b"WBKE\x00\x00\x01\x00" + bytes(5))[4:],
        frame(b"WBKE\x01\x00\x01\x00" + bytes(4) + b"\x03ab")[4:],
        frame(b"WBKE\x01\x00\x01\x00" + bytes(4) + b"\x01\xff")[4:],
        frame(b"WBKE")[4:],
    ],
    ids=["wrong magic", "versions upside down", "version zero", "id too long", "id no UTF-8", "too short"],
)
def test_a_hello_that_is_not_exactly_right_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_hello(body)

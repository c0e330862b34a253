"""The metadata protocol: what is encoded is decoded, and what is not whole is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import (
    ChecksumError,
    MetaConflictError,
    MetaError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.wire import meta as hello
from weir.wire import meta as requests
from weir.wire import meta as responses
from weir.wire.meta import CODES, ERRORS, MAX_TEXT_BYTES, Item
from weir.wire.node.frames import PREFIX_BYTES, Failed

NUMBER = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
KEY = st.text(max_size=40)
EXPECT = st.none() | NUMBER
REQUESTS = st.one_of(
    st.builds(requests.Get, NUMBER, KEY),
    st.builds(requests.Put, NUMBER, KEY, st.binary(max_size=60), EXPECT, NUMBER),
    st.builds(requests.Delete, NUMBER, KEY, EXPECT),
    st.builds(requests.List, NUMBER, KEY),
    st.builds(requests.Page, NUMBER, KEY, KEY, U32),
    st.builds(requests.Count, NUMBER, KEY),
    st.builds(requests.Watch, NUMBER, KEY, NUMBER, U32),
    st.builds(requests.Grant, NUMBER, U32),
    st.builds(requests.Renew, NUMBER, NUMBER),
    st.builds(requests.Revoke, NUMBER, NUMBER),
)
ITEMS = st.lists(st.builds(Item, KEY, st.binary(max_size=30), NUMBER), max_size=4)
CHANGES = st.lists(st.builds(Item, KEY, st.none() | st.binary(max_size=30), NUMBER), max_size=4)


@given(REQUESTS)
def test_a_request_is_decoded_as_it_was_encoded(request: requests.Request) -> None:
    assert requests.decode_request(requests.encode_request(request)[PREFIX_BYTES:]) == request


@given(NUMBER, NUMBER, ITEMS, CHANGES, st.booleans())
def test_a_response_is_decoded_as_it_was_encoded(
    number: int, version: int, items: list[Item], changes: list[Item], flag: bool
) -> None:
    def decoded(frame: bytes) -> responses.Response:
        return responses.decode_response(frame[PREFIX_BYTES:])

    assert decoded(responses.encode_items(number, version, items, more=flag)) == (number, version, flag, items)
    assert decoded(responses.encode_changes(number, version, changes)) == (number, version, changes)
    assert decoded(responses.encode_done(number, version)) == responses.Done(number, version)
    assert decoded(responses.encode_forgotten(number)) == responses.Forgotten(number)
    assert decoded(responses.encode_leased(number, version, alive=flag)) == (number, version, flag)


@pytest.mark.parametrize("error", ERRORS.values())
def test_an_error_arrives_as_the_class_that_was_raised(error: type[WeirError]) -> None:
    frame = responses.encode_failed(CODES.failed(7, error("what happened", hint="what to do")))
    failed = responses.decode_response(frame[PREFIX_BYTES:])
    assert isinstance(failed, Failed)
    arrived = CODES.error(failed)
    assert (type(arrived), arrived.what, arrived.hint) == (error, "what happened", "what to do")


def test_what_is_no_error_of_weir_says_nothing_of_the_insides() -> None:
    failed = CODES.failed(7, ValueError("/root/secret"))
    assert type(CODES.error(failed)) is MetaError
    assert "secret" not in failed.what + failed.hint


def test_a_code_of_a_later_version_is_still_a_metadata_error() -> None:
    assert type(CODES.error(Failed(1, 9999, "new", ""))) is MetaError
    assert type(CODES.error(CODES.failed(1, MetaConflictError("")))) is MetaConflictError


def test_a_long_text_of_a_failure_is_cut_between_characters() -> None:
    frame = responses.encode_failed(Failed(1, 1, "ä" * MAX_TEXT_BYTES, "h"))
    failed = responses.decode_failed(frame[PREFIX_BYTES:])
    assert failed.what == "ä" * (MAX_TEXT_BYTES // 2)
    assert failed.hint == "h"


def test_a_flipped_bit_is_seen() -> None:
    body = bytearray(requests.encode_request(requests.Renew(1, 2))[PREFIX_BYTES:])
    body[-1] ^= 1
    with pytest.raises(ChecksumError):
        requests.decode_request(bytes(body))


def test_neither_a_request_nor_a_response_is_taken_for_a_hello() -> None:
    for frame in (requests.encode_request(requests.List(1, "/" + "x" * 40)), responses.encode_done(1, 2)):
        for decode in (hello.decode_hello, hello.decode_welcome):
            with pytest.raises(WireError):
                decode(frame[PREFIX_BYTES:])


def test_versions_that_do_not_meet_are_named() -> None:
    assert hello.choose_version(hello.Hello(1, 9)) == 1
    with pytest.raises(UnknownVersionError, match="2 to 3"):
        hello.choose_version(hello.Hello(2, 3))

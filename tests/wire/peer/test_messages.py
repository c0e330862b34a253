"""What brokers say to each other: every value comes back, and what is not exactly right is refused."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model import errors
from weir.model.cluster import BrokerLoad, BundleLoad, BundleName
from weir.model.errors import (
    ChecksumError,
    EntryLostError,
    MemberIdRequiredError,
    NotOwnerError,
    PeerFailedError,
    PeerUnsupportedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.topics import NamespaceName, TopicName
from weir.wire.node.frames import FrameSplitter, frame
from weir.wire.peer import protocol
from weir.wire.peer.call_table import (
    CALLS,
    call_named,
    call_of,
    decode_answer_value,
    decode_request_value,
    encode_answer_value,
)
from weir.wire.peer.calls import AdminAnswer, AdminCall, GetReady, ReportLoad
from weir.wire.peer.protocol import (
    MAX_TEXT_CHARS,
    Hello,
    ValueDecoder,
    Welcome,
    choose_version,
    decode_failure,
    decode_hello,
    decode_welcome,
    encode_failure,
    encode_hello,
    encode_value,
    encode_welcome,
)

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
numbers = st.integers(1, 2**64 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
headers = st.dictionaries(texts, texts, max_size=3)
rates = st.floats(0, 1e12)


def body_of(data: bytes) -> memoryview:
    """The body of a frame, through the splitter, as it arrives in life."""
    (body,) = FrameSplitter(protocol.MAX_FRAME_BYTES).feed(data)
    return body


@given(numbers, u16, u32, st.binary(max_size=60))
def test_a_request_comes_back(request_id: int, call: int, timeout_ms: int, value: bytes) -> None:
    got = protocol.decode_request(body_of(protocol.encode_request(request_id, call, timeout_ms, value)))
    assert got == (request_id, call, timeout_ms, value)


@given(u64, st.binary(max_size=60))
def test_an_answer_and_a_failure_come_back_each_as_its_kind(request_id: int, value: bytes) -> None:
    answer = protocol.decode_response(body_of(protocol.encode_answer(request_id, value)))
    failed = protocol.decode_response(body_of(protocol.encode_failed(request_id, value)))
    assert (type(answer), *answer) == (protocol.Answer, request_id, value)
    assert (type(failed), *failed) == (protocol.Failed, request_id, value)


@given(numbers, st.binary(max_size=30), st.data())
def test_a_flipped_bit_anywhere_is_found(request_id: int, value: bytes, data: st.DataObject) -> None:
    body = bytearray(body_of(protocol.encode_answer(request_id, value)))
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises((ChecksumError, WireError)):
        protocol.decode_response(bytes(body))


def test_a_request_without_a_number_is_refused() -> None:
    with pytest.raises(WireError, match="number 0"):
        protocol.decode_request(body_of(protocol.encode_request(0, 1, 1, b"")))


@pytest.mark.parametrize("kind", [0, 2, 3, 99])
def test_what_is_no_request_is_refused(kind: int) -> None:
    with pytest.raises(WireError, match="kind"):
        protocol.decode_request(body_of(frame(bytes([kind]) + bytes(20))))


# --- values ------------------------------------------------------------------------------------------------------


@given(texts, texts, st.binary(max_size=50), headers)
def test_an_admin_call_and_its_answer_come_back(role: str, path: str, body: bytes, said: dict[str, str]) -> None:
    asked, answer = AdminCall(role, "GET", path, "q", body, said), AdminAnswer(200, body, "text/plain", said)
    call = call_of(asked)
    assert decode_request_value(call, encode_value(asked)) == asked
    assert decode_answer_value(call, encode_answer_value(call, answer)) == answer


@given(st.integers(0, 2**32 - 2), st.lists(st.sampled_from(["a", "b-partition-3", "ü"]), max_size=3))
def test_a_bundle_and_its_topics_come_back(low: int, names: list[str]) -> None:
    bundle = BundleName(NamespaceName("t", "n"), low, 2**32 - 1)
    asked = GetReady(bundle, tuple(map(TopicName.parse, names)))
    assert decode_request_value(call_of(asked), encode_value(asked)) == asked


@given(rates, rates, st.booleans())
def test_a_load_report_comes_back(cpu: float, rate: float, draining: bool) -> None:
    bundle = BundleLoad("a/b/0x00000000_0x40000000", rate, rate, rate, rate, 3)
    load, call = BrokerLoad("b1", (bundle,), cpu, draining=draining), call_of(ReportLoad())
    assert decode_answer_value(call, encode_answer_value(call, load)) == load


@pytest.mark.parametrize(
    "namespace", [{"tenant": "t", "name": "a/b"}, {"tenant": "", "name": "n"}, {"tenant": "t", "name": ".."}]
)
def test_a_name_that_nobody_could_have_written_is_refused(namespace: dict[str, str]) -> None:
    sent = {"bundle": {"namespace": namespace, "low": 0, "high": 1}, "topics": []}
    with pytest.raises(WireError):
        decode_request_value(call_named(16), msgspec.msgpack.encode(sent))


@pytest.mark.parametrize("local", ["", "a\x00b", "x-partition-1"])
def test_a_topic_that_nobody_could_have_named_is_refused(local: str) -> None:
    bundle = {"namespace": {"tenant": "t", "name": "n"}, "low": 0, "high": 1}
    topic = {"namespace": {"tenant": "t", "name": "n"}, "local": local}
    with pytest.raises(WireError):
        decode_request_value(call_named(16), msgspec.msgpack.encode({"bundle": bundle, "topics": [topic]}))


@dataclass(frozen=True, slots=True)
class _Old:
    name: str


@dataclass(frozen=True, slots=True)
class _New:
    name: str
    rack: str = "none"
    weight: float = 1.0


def test_brokers_of_two_versions_understand_each_other() -> None:
    assert ValueDecoder(_Old).decode(encode_value(_New("b", "r"))) == _Old("b")
    assert ValueDecoder(_New).decode(encode_value(_Old("b"))) == _New("b")


@pytest.mark.parametrize("value", [{"name": 1}, {}, {"name": "b", "weight": float("nan")}, ["b"], 7])
def test_a_value_of_another_shape_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        ValueDecoder(_New).decode(msgspec.msgpack.encode(value))


def test_bytes_behind_a_value_are_refused() -> None:
    with pytest.raises(WireError):
        ValueDecoder(_New).decode(encode_value(_New("b")) + b"\x00")


def test_every_call_has_a_name_of_its_own() -> None:
    assert len({call.name for call in CALLS}) == len(CALLS)


def test_a_call_of_a_newer_broker_is_unsupported() -> None:
    with pytest.raises(PeerUnsupportedError, match="60000"):
        call_named(60000)


# --- errors ------------------------------------------------------------------------------------------------------

EVERY_ERROR = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_crosses_as_its_class(kind: type[WeirError]) -> None:
    got = decode_failure(encode_failure(kind("what", hint="do this")))
    assert (type(got), got.what, got.hint) == (kind, "what", "do this")


def test_what_errors_carry_crosses_with_them() -> None:
    owner = decode_failure(encode_failure(NotOwnerError("x", listeners={"kafka": "h:1"})))
    member = decode_failure(encode_failure(MemberIdRequiredError("x", member_id="m")))
    lost = decode_failure(encode_failure(EntryLostError("x", ledger_id=7, entry_id=8)))
    assert isinstance(owner, NotOwnerError)
    assert owner.listeners == {"kafka": "h:1"}
    assert isinstance(member, MemberIdRequiredError)
    assert member.member_id == "m"
    assert isinstance(lost, EntryLostError)
    assert (lost.ledger_id, lost.entry_id) == (7, 8)


def test_an_error_of_a_newer_broker_has_no_name_here_but_says_what_it_said() -> None:
    got = decode_failure(msgspec.msgpack.encode({"error": "BrandNewError", "what": "it broke", "hint": "upgrade"}))
    assert isinstance(got, PeerFailedError)
    assert str(got) == "BrandNewError: it broke (upgrade)"


def test_an_error_that_is_not_of_the_tree_goes_as_its_nearest_ancestor() -> None:
    class Special(NotOwnerError):
        pass

    got = decode_failure(encode_failure(Special("x", listeners={"kafka": "h:1"})))
    assert type(got) is NotOwnerError


def test_a_long_text_of_an_error_is_cut() -> None:
    assert decode_failure(encode_failure(WeirError("ä" * 5000, hint="\ud800"))).what == "ä" * MAX_TEXT_CHARS


# --- hello -------------------------------------------------------------------------------------------------------


@given(texts, texts, st.integers(1, 2**16 - 1), st.integers(1, 2**16 - 1), u32)
def test_a_hello_comes_back(asker: str, meant: str, one: int, other: int, features: int) -> None:
    hello = Hello(asker, meant, min(one, other), max(one, other), features)
    assert decode_hello(body_of(encode_hello(hello))) == hello


@given(texts, u16, u32, u32)
def test_a_welcome_comes_back(name: str, version: int, features: int, max_frame_bytes: int) -> None:
    welcome = Welcome(name, version, features, max_frame_bytes)
    assert decode_welcome(body_of(encode_welcome(welcome))) == welcome


def test_a_failure_may_answer_a_hello() -> None:
    got = decode_welcome(body_of(protocol.encode_failed(0, b"x")))
    assert isinstance(got, protocol.Failed)


def test_a_version_that_nobody_shares_is_said_so() -> None:
    assert choose_version(Hello("a", "b", 1, 9)) == 1
    with pytest.raises(UnknownVersionError, match="2 to 3"):
        choose_version(Hello("a", "b", 2, 3))

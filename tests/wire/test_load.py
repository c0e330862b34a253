"""Load reports: what is encoded comes back, and what is no measure is refused by name."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.model.cluster import MAX_REPORTED_BUNDLES, BalanceLeader, BrokerLoad, BundleLoad
from weir.model.errors import UnknownVersionError, WireError
from weir.testing.kinds import rounds
from weir.wire.broker_load import decode_leader, decode_load, encode_leader, encode_load

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
measures = st.floats(0, 1e18)
counts = st.integers(0, 2**53)
bundles = st.builds(BundleLoad, texts, measures, measures, measures, measures, counts)
loads = st.builds(
    BrokerLoad, texts, st.lists(bundles, max_size=3).map(tuple), *[measures] * 6, counts, st.booleans()
)
SAMPLE = BrokerLoad("b1", (BundleLoad("t/n/0x0_0x1", 1, 2, 3, 4, 5),), 0.5, 0.25, 1, 2, 3, 4, 7, True)


@settings(max_examples=rounds(100), deadline=None)
@given(loads)
def test_what_is_encoded_comes_back(load: BrokerLoad) -> None:
    assert decode_load(encode_load(load)) == load


@settings(max_examples=rounds(100), deadline=None)
@given(st.data())
def test_a_report_with_a_field_replaced_is_read_or_refused_and_with_one_missing_refused(
    data: st.DataObject,
) -> None:
    sample = json.loads(encode_load(SAMPLE))
    name = data.draw(st.sampled_from([key for key in sample if key != "v"]))
    sample[name] = data.draw(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | texts,
            lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=2),
            max_leaves=8,
        )
    )
    with suppress(WireError):
        decode_load(json.dumps(sample).encode())
    del sample[name]
    with pytest.raises(WireError):
        decode_load(json.dumps(sample).encode())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, True, "1", None, 10**400])
def test_a_share_of_cpu_that_is_no_measure_is_refused(bad: object) -> None:
    sample = json.loads(encode_load(SAMPLE))
    with pytest.raises(WireError):
        decode_load(json.dumps({**sample, "cpu": bad}).encode())
    with pytest.raises(WireError):
        decode_load(json.dumps({**sample, "bundles": [["x", 1, bad, 1, 1, 1]]}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"\xff", b"{}"])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_load(data)


def test_more_bundles_than_a_report_may_name_are_refused() -> None:
    with pytest.raises(WireError):
        decode_load(encode_load(BrokerLoad("b", (BundleLoad("x"),) * (MAX_REPORTED_BUNDLES + 1))))


def test_a_newer_version_is_refused_and_newer_fields_left_out() -> None:
    sample = json.loads(encode_load(SAMPLE))
    sample["disk"] = 1
    sample["bundles"][0].append("newer")
    sample["rates"].append(9)
    assert decode_load(json.dumps(sample).encode()) == SAMPLE
    with pytest.raises(UnknownVersionError):
        decode_load(json.dumps({**sample, "v": 2}).encode())


@settings(max_examples=20, deadline=None)
@given(st.builds(BalanceLeader, texts, texts))
def test_a_leader_that_is_encoded_comes_back(leader: BalanceLeader) -> None:
    assert decode_leader(encode_leader(leader)) == leader


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"v":1,"broker":"b"}', b'{"v":1,"broker":1,"term":"t"}'])
def test_what_is_no_leader_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_leader(data)

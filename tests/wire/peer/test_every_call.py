"""Every call between brokers, whoever added it: any request and any answer of its types comes back as it was."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weir.model.cluster import BundleName
from weir.model.topics import NamespaceName, TopicName
from weir.wire.peer.call_table import (
    CALLS,
    call_of,
    decode_answer_value,
    decode_request_value,
    encode_answer_value,
)
from weir.wire.peer.protocol import Call, encode_value

namespaces = st.sampled_from([NamespaceName("public", "default"), NamespaceName("weir", "system")])
topics = st.sampled_from(["a", "persistent://t/n/b-partition-3", "non-persistent://t/n/ü"]).map(TopicName.parse)
bundles = st.builds(BundleName, namespaces, st.integers(0, 2**32 - 2), st.just(2**32 - 1))
for kind, strategy in (
    (str, st.text(st.characters(codec="utf-8"), max_size=20)),
    (int, st.integers(0, 2**63 - 1)),
    (float, st.floats(0, 1e9)),
    (bytes, st.binary(max_size=20)),
    (NamespaceName, namespaces),
    (TopicName, topics),
    (BundleName, bundles),
):
    st.register_type_strategy(kind, strategy)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_its_request_and_its_answer_come_back(call: Call[Any], data: st.DataObject) -> None:
    request = data.draw(st.from_type(call.request))
    assert call_of(request) is call
    assert decode_request_value(call, encode_value(request)) == request
    if call.answer_codec is None:
        answer = data.draw(st.from_type(call.answer))
        assert decode_answer_value(call, encode_answer_value(call, answer)) == answer

"""Metadata values of the broker: what is encoded comes back, and what is malformed is refused by name."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.model.cluster import LAST_HASH, Boundaries, BundleClaim
from weir.model.definitions import (
    Function,
    FunctionStats,
    FunctionWanted,
    RunnerLease,
    SqlStream,
    StreamProgress,
    Wanted,
)
from weir.model.errors import UnknownVersionError, WireError
from weir.model.policies import (
    DEFAULT_POLICIES,
    AutoTopicCreation,
    BacklogAction,
    BacklogQuota,
    Cleanup,
    Isolation,
    IsolationPolicy,
    LogCompaction,
    Policies,
    Priority,
    Rate,
    Retention,
    Roll,
    SchemaCompatibility,
)
from weir.model.registry import (
    Action,
    BrokerInfo,
    Cluster,
    Grants,
    Namespace,
    StoredSchema,
    Tenant,
    TopicRecord,
)
from weir.model.retry import Backoff, FixedDelays, RetryPolicy
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName
from weir.testing.kinds import rounds
from weir.wire import definitions as function_codec
from weir.wire import definitions as sql_codec
from weir.wire import registry as bundle_codec
from weir.wire import registry as codec

numbers = st.integers(-1, 2**62)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
pairs = st.dictionaries(texts, texts, max_size=3)
entities = st.from_regex(r"[a-z0-9=:_-]{1,12}", fullmatch=True)
namespaces = st.builds(NamespaceName, entities, entities)
topics = st.builds(
    TopicName,
    namespaces,
    st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\x7f"), min_size=1, max_size=20
    ).filter(lambda local: local not in (".", "..") and "-partition-" not in local),
    st.sampled_from(Domain),
)
rates = st.builds(Rate, numbers, numbers)
patterns = st.lists(entities, max_size=3).map(tuple)
policies = st.builds(
    Policies,
    **{
        field.name: st.none() | numbers
        for field in fields(Policies)
        if isinstance(getattr(DEFAULT_POLICIES, field.name), int)
        and not isinstance(getattr(DEFAULT_POLICIES, field.name), bool)
    },
    **{
        field.name: st.none() | st.booleans()
        for field in fields(Policies)
        if isinstance(getattr(DEFAULT_POLICIES, field.name), bool)
    },
    retention=st.none() | st.builds(Retention, numbers, numbers, st.none() | numbers, st.none() | numbers),
    log_compaction=st.none() | st.builds(LogCompaction, st.sampled_from(Cleanup), *[numbers] * 4),
    roll=st.none() | st.builds(Roll, numbers, numbers),
    retry=st.none()
    | st.builds(
        RetryPolicy,
        st.none() | st.just(FixedDelays((1000, 60_000))) | st.just(Backoff(1000, 60_000, 3.5)),
        st.none() | st.integers(0, 1000),
        st.none() | st.sampled_from(["", "dead", "persistent://a/b/dead"]),
    ),
    priority=st.none()
    | st.builds(Priority, st.integers(0, 255), st.integers(0, 1 << 31), st.integers(0, 1 << 31)),
    isolation=st.none() | st.builds(Isolation, patterns, patterns, numbers, patterns),
    backlog_quota=st.none() | st.builds(BacklogQuota, numbers, numbers, st.sampled_from(BacklogAction)),
    publish_rate=st.none() | rates,
    dispatch_rate=st.none() | rates,
    subscription_dispatch_rate=st.none() | rates,
    schema_compatibility=st.none() | st.sampled_from(SchemaCompatibility),
    auto_topic_creation=st.none() | st.builds(AutoTopicCreation, st.booleans(), numbers),
)

VALUES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "cluster": (
        st.builds(
            Cluster,
            texts,
            st.none() | texts,
            st.none() | texts,
            st.dictionaries(entities, st.builds(IsolationPolicy, patterns, patterns, patterns, numbers, numbers)),
        ),
        codec.encode_cluster,
        codec.decode_cluster,
    ),
    "tenant": (
        st.builds(
            Tenant,
            texts,
            st.lists(texts, max_size=3).map(tuple),
            st.lists(texts, max_size=3).map(tuple),
            st.booleans(),
        ),
        codec.encode_tenant,
        codec.decode_tenant,
    ),
    "namespace": (
        st.builds(Namespace, namespaces, policies, pairs, st.booleans()),
        codec.encode_namespace,
        codec.decode_namespace,
    ),
    "topic": (
        st.builds(TopicRecord, topics, st.integers(0, 10_000), policies, pairs, numbers),
        codec.encode_topic,
        codec.decode_topic,
    ),
    "grants": (
        st.builds(
            Grants,
            st.dictionaries(texts, st.lists(st.sampled_from(Action), unique=True).map(tuple), max_size=3),
        ),
        codec.encode_grants,
        codec.decode_grants,
    ),
    "broker": (
        st.builds(
            BrokerInfo,
            texts,
            texts,
            st.dictionaries(texts, texts.filter(bool)),
            st.integers(0),
            texts,
            st.lists(texts).map(tuple),
            st.booleans(),
        ),
        codec.encode_broker,
        codec.decode_broker,
    ),
    "claim": (
        st.builds(BundleClaim, texts, texts, st.integers(0), texts, st.integers(0, LAST_HASH)),
        bundle_codec.encode_claim,
        bundle_codec.decode_claim,
    ),
    "boundaries": (
        st.integers(1, 500).map(Boundaries.even),
        bundle_codec.encode_boundaries,
        bundle_codec.decode_boundaries,
    ),
    "schema": (
        st.builds(StoredSchema, numbers, texts, st.binary(max_size=50), pairs, texts, numbers, st.booleans()),
        codec.encode_schema,
        codec.decode_schema,
    ),
    "SQL stream": (
        st.builds(
            SqlStream,
            topics,
            texts,
            texts,
            st.lists(topics, max_size=3).map(tuple),
            pairs,
            st.sampled_from(Wanted),
            texts,
            numbers,
        ),
        sql_codec.encode_stream,
        sql_codec.decode_stream,
    ),
    "progress": (
        st.builds(StreamProgress, texts, texts, st.floats(allow_nan=False), *[numbers] * 6, texts, numbers),
        sql_codec.encode_progress,
        sql_codec.decode_progress,
    ),
    "function": (
        st.builds(
            Function,
            topics,
            texts,
            numbers,
            *[texts] * 3,
            st.lists(topics, max_size=3).map(tuple),
            st.none() | topics,
            pairs,
            st.sampled_from(FunctionWanted),
            texts,
            numbers,
            numbers,
        ),
        function_codec.encode_function,
        function_codec.decode_function,
    ),
    "stats": (
        st.builds(FunctionStats, texts, numbers, texts, *[numbers] * 5, st.floats(allow_nan=False)),
        function_codec.encode_stats,
        function_codec.decode_stats,
    ),
    "runner": (st.builds(RunnerLease, texts, texts, numbers), sql_codec.encode_runner, sql_codec.decode_runner),
}
SAMPLES = [
    codec.encode_cluster(Cluster("c")),
    codec.encode_tenant(Tenant("t", ("a",))),
    codec.encode_namespace(Namespace(DEFAULT_NAMESPACE, DEFAULT_POLICIES)),
    codec.encode_topic(TopicRecord(TopicName.parse("t"), 3)),
    codec.encode_grants(Grants({"r": (Action.PRODUCE,)})),
    codec.encode_broker(BrokerInfo("b", "1")),
    bundle_codec.encode_claim(BundleClaim("b", "1", 3, "c", 5)),
    bundle_codec.encode_boundaries(Boundaries.even(3)),
    codec.encode_schema(StoredSchema(0, "AVRO", b"x")),
    sql_codec.encode_stream(SqlStream(TopicName.parse("t"), "1", "SELECT 1", (TopicName.parse("s"),))),
    sql_codec.encode_progress(StreamProgress("1", "running")),
    sql_codec.encode_runner(RunnerLease("r", "here", 5)),
    function_codec.encode_function(Function(TopicName.parse("t"), "1", 1, "x", "f.py", "f", ())),
    function_codec.encode_stats(FunctionStats("1", 1, "running")),
]


#: What brokers of before do not say of themselves, and what of a claim is mostly left out.
ADDED_LATER = ("isolation", "node_id", "rack", "features", "draining", "next", "split")
ADDED_LATER += ("failures", "failed_ms", "next_try_ms", "retried", "instances", "restarts")


@settings(max_examples=rounds(40), deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", VALUES)
def test_what_is_encoded_comes_back(kind: str, data: st.DataObject) -> None:
    values, encode, decode = VALUES[kind]
    value = data.draw(values)
    assert decode(encode(value)) == value


@settings(max_examples=rounds(40), deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", VALUES)
def test_a_value_with_a_field_replaced_or_missing_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    _, _, decode = VALUES[kind]
    sample = json.loads(SAMPLES[list(VALUES).index(kind)])
    name = data.draw(st.sampled_from([key for key in sample if key != "v"]))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
        max_leaves=4,
    )
    sample[name] = data.draw(junk)
    with suppress(WireError):
        decode(json.dumps(sample).encode())
    del sample[name]
    with suppress(WireError) if name in ADDED_LATER else pytest.raises(WireError):
        decode(json.dumps(sample).encode())


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"\xff", b"{}"])
def test_what_is_no_value_is_refused(kind: str, data: bytes) -> None:
    with pytest.raises(WireError):
        VALUES[kind][2](data)


def test_a_newer_version_is_refused_and_a_newer_field_left_out() -> None:
    sample = json.loads(codec.encode_topic(TopicRecord(TopicName.parse("t"), 3)))
    sample["policies"]["from_the_future"] = {"x": 1}
    sample["also"] = 1
    assert codec.decode_topic(json.dumps(sample).encode()) == TopicRecord(TopicName.parse("t"), 3)
    with pytest.raises(UnknownVersionError):
        codec.decode_topic(json.dumps({**sample, "v": 2}).encode())


def test_only_policies_that_were_set_are_written() -> None:
    assert codec.policies_to_fields(Policies(message_ttl_s=0)) == {"message_ttl_s": 0}

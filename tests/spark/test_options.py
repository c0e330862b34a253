"""Options mean what they mean to Spark's Kafka source; wrong ones are errors that say what to write."""

import re

import pytest

from weir.client.kafka.cluster import Partition
from weir.client.kafka.settings import Address, Login, TlsFiles, parse_servers
from weir.model.errors import ConfigError
from weir.spark.options import (
    EARLIEST,
    KAFKA,
    LATEST,
    OWN,
    REFUSED,
    SOURCE,
    WITHOUT_EFFECT,
    OffsetSpec,
    SourceOptions,
    from_json,
    parse,
    span_ms,
    to_json,
)

BASE = {"kafka.bootstrap.servers": "one:1,two", "subscribe": "orders"}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_TOKEN", raising=False)


def batch(**more: str) -> SourceOptions:
    return parse(BASE | {name.replace("__", "."): value for name, value in more.items()}, streaming=False)


def stream(**more: str) -> SourceOptions:
    return parse(BASE | {name.replace("__", "."): value for name, value in more.items()}, streaming=True)


def refused(text: str, options: dict[str, str], *, streaming: bool = False) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        parse(options, streaming=streaming)


def test_a_batch_reads_everything_and_a_stream_what_is_new() -> None:
    assert (batch().start, batch().end) == (OffsetSpec(word=EARLIEST), OffsetSpec(word=LATEST))
    assert stream().start == OffsetSpec(word=LATEST)


def test_names_are_taken_in_any_case_as_spark_gives_them() -> None:
    found = parse(
        {name.lower(): value for name, value in BASE.items()} | {"startingoffsets": "latest"}, streaming=True
    )
    assert found.start == OffsetSpec(word=LATEST)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("subscibe", "did you mean subscribe?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("kafka.bootstrap.server", "did you mean kafka.bootstrap.servers?"),
        ("maxOffsetPerTrigger", "did you mean maxOffsetsPerTrigger?"),
        ("qqqq", "docs/reference/spark.md"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(given: str, hint: str) -> None:
    refused(hint, BASE | {given: "1"})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_the_kafka_source_refuses_is_refused(name: str) -> None:
    refused(REFUSED[name], BASE | {name: "x"})


def test_no_option_is_listed_twice() -> None:
    names = [name.lower() for name in (*SOURCE, *OWN, *KAFKA, *WITHOUT_EFFECT, *REFUSED)]
    assert len(names) == len(set(names))


def test_tuning_of_kafkas_consumer_may_stay_in_a_job() -> None:
    for name in WITHOUT_EFFECT:
        parse(BASE | {name: "1"}, streaming=True)


def test_exactly_one_way_of_naming_topics() -> None:
    servers = {"kafka.bootstrap.servers": "one"}
    refused("no topic", servers)
    refused("subscribe and path", servers | {"subscribe": "a", "path": "b"})
    refused("names no topic", servers | {"subscribe": " , "})
    assert parse(servers | {"path": "a, b"}, streaming=True).wanted.topics == ("a", "b")
    assert parse(servers | {"subscribePattern": "a.*"}, streaming=True).wanted.pattern == "a.*"
    refused("regular expression", servers | {"subscribePattern": "("})
    assigned = parse(servers | {"assign": '{"a": [1, 0]}'}, streaming=True).wanted
    assert assigned.partitions == (Partition("a", 0), Partition("a", 1))
    for wrong in ("{", "[]", '{"a": ["x"]}', '{"a": [-1]}', "{}"):
        refused("JSON", servers | {"assign": wrong})


def test_places_by_word_offsets_and_moments_the_first_of_these_wins() -> None:
    offsets = '{"orders": {"0": 5, "1": -2}}'
    assert batch(startingOffsets=offsets).start.offsets == {Partition("orders", 0): 5, Partition("orders", 1): -2}
    moments = batch(startingOffsets=offsets, startingOffsetsByTimestamp='{"orders": {"0": 1000}}').start
    assert moments == OffsetSpec(moments={Partition("orders", 0): 1000})
    assert batch(startingTimestamp="99", startingOffsets=offsets).start == OffsetSpec(moment=99)
    assert batch(endingTimestamp="99").end == OffsetSpec(moment=99)


@pytest.mark.parametrize(
    "wrong",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"orders": {"0": -2}}'},
    ],
)
def test_a_batch_that_could_read_nothing_is_refused(wrong: dict[str, str]) -> None:
    refused("nothing to read", BASE | wrong)


@pytest.mark.parametrize(
    "wrong", ["soon", "{}", '{"orders": 5}', '{"orders": {"0": "x"}}', '{"orders": {"0": -3}}']
)
def test_offsets_that_are_none_are_refused(wrong: str) -> None:
    refused("startingOffsets", BASE | {"startingOffsets": wrong})


def test_a_stream_has_no_end_and_a_batch_no_trigger() -> None:
    refused("a stream has no end", BASE | {"endingOffsets": "latest"}, streaming=True)
    assert batch(maxOffsetsPerTrigger="5", maxTriggerDelay="3s").end == OffsetSpec(word=LATEST)  # with a warning
    assert stream(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="2", maxTriggerDelay="3s").max_per_trigger == 5
    refused("minOffsetsPerTrigger is 6", BASE | {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"})
    refused("maxOffsetsPerTrigger is '0'", BASE | {"maxOffsetsPerTrigger": "0"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failOnDataLoss", "maybe"),
        ("includeHeaders", "1"),
        ("minPartitions", "many"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.security.protocol", "TLS"),
        ("kafka.sasl.mechanism", "GSSAPI"),
        ("startingOffsetsByTimestampStrategy", "early"),
        ("maxTriggerDelay", "soon"),
    ],
)
def test_a_value_that_makes_no_sense_names_its_option(name: str, value: str) -> None:
    refused(name, BASE | {name: value}, streaming=True)


def test_servers_are_hosts_with_or_without_ports() -> None:
    assert batch().kafka.servers == (Address("one", 1), Address("two", 9092))
    assert parse_servers("[::1]:5, [::2], PLAINTEXT://h:7") == (
        Address("::1", 5),
        Address("::2", 9092),
        Address("h", 7),
    )
    for wrong in ("", ":1", "h:x", "h:70000", ","):
        with pytest.raises(ConfigError):
            parse_servers(wrong)


def test_a_token_is_the_password_of_plain_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert batch().kafka.login is None
    assert batch(token="abc").kafka.login == Login("token", "abc")
    assert "abc" not in repr(batch(token="abc"))
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    found = batch(kafka__security__protocol="SASL_SSL", kafka__sasl__jaas__config=jaas).kafka
    assert (found.login, found.tls) == (Login("u", "p"), TlsFiles())
    refused("needs credentials", BASE | {"kafka.security.protocol": "SASL_SSL"})
    monkeypatch.setenv("WEIR_TOKEN", "from the environment")
    assert batch().kafka.login == Login("token", "from the environment")
    assert batch(kafka__security__protocol="PLAINTEXT").kafka.login is None


def test_a_token_may_lie_in_a_file_of_the_driver(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("abc\n")
    assert batch(token=f"file:{file}").kafka.login == Login("token", "abc")
    refused("cannot read the token", BASE | {"token": f"file:{file}.missing"})


def test_tls_takes_files_in_pem_under_either_name() -> None:
    secure = {"kafka__security__protocol": "SSL"}
    found = batch(
        **secure, kafka__ssl__truststore__location="ca.pem", kafka__ssl__truststore__type="PEM"
    ).kafka.tls
    assert found == TlsFiles(ca="ca.pem")
    other = batch(
        **secure,
        kafka__ssl__ca__location="ca",
        kafka__ssl__certificate__location="c",
        kafka__ssl__key__location="k",
        kafka__ssl__endpoint__identification__algorithm="",
    ).kafka.tls
    assert other == TlsFiles("ca", "c", "k", check_host=False)
    refused("PEM", BASE | {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"})


def test_a_querys_positions_are_kept_under_its_subscription() -> None:
    assert stream().subscription is None
    assert stream(kafka__group__id="g").subscription == "g"
    assert stream(kafka__group__id="g", subscription="s").subscription == "s"
    assert stream(subscription="s", retain="true").retain
    assert stream(subscription="s", retain="false").retain is False
    assert stream(subscription="s").retain is None  # then its name decides
    with pytest.raises(ConfigError, match="no subscription"):
        stream(retain="true")


def test_a_query_without_a_name_gets_sparks_behind_a_prefix_unless_it_wants_none() -> None:
    assert (stream().keep, stream().group_prefix) == (True, "spark")
    assert stream(groupIdPrefix="jobs").group_prefix == "jobs"
    assert not stream(subscription="").keep


def test_offsets_survive_the_checkpoint() -> None:
    offsets = {Partition("b", 10): 7, Partition("b", 2): 0, Partition("a", 0): 1}
    assert to_json(offsets) == {"a": {"0": 1}, "b": {"2": 0, "10": 7}}
    assert from_json(to_json(offsets)) == offsets


def test_spans_have_units() -> None:
    assert [span_ms("x", text) for text in ("5", "5ms", "2 s", "15m", "1h")] == [5, 5, 2000, 900_000, 3_600_000]

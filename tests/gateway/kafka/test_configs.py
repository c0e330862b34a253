"""Topic configs: what they become in Weir, and how they are shown."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from weir.gateway.kafka.config_table import CONFIGS, TABLE, ConfigType, config_named
from weir.gateway.kafka.configs import (
    BrokerDefaults,
    Source,
    changed,
    everything_else,
    new_topic,
    said_list,
    shown,
)
from weir.model.errors import ConfigError
from weir.model.policies import DEFAULT_POLICIES, Cleanup, LogCompaction, Policies, Retention, Roll
from weir.model.registry import TopicRecord
from weir.model.topics import TopicName

NAME = TopicName.parse("t")
LONG_MAX = str(2**63 - 1)


def made(**said: str) -> TopicRecord:
    """A topic made by a Kafka client; configs with _ for each dot."""
    policies, properties = new_topic(
        {name.replace("_", "."): value for name, value in said.items()}, DEFAULT_POLICIES
    )
    return TopicRecord(NAME, 1, policies, properties)


def change(record: TopicRecord, **said: str | None) -> TopicRecord:
    changes = {name.replace("_", "."): value for name, value in said.items()}
    return changed(record, record.policies.over(DEFAULT_POLICIES), changes)


def values(record: TopicRecord) -> dict[str, tuple[str, Source]]:
    found = shown(record, record.policies.over(DEFAULT_POLICIES), BrokerDefaults())
    return {s.config.name: (s.value, s.source) for s in found}


def test_a_new_topic_has_kafkas_defaults_and_says_so() -> None:
    record = made()
    assert record.policies == Policies()  # its namespace's hold
    found = values(record)
    assert list(found) == sorted(CONFIGS)
    assert {source for _, source in found.values()} == {Source.DEFAULT}
    assert found["retention.ms"][0] == "604800000"
    assert found["cleanup.policy"][0] == "delete"
    assert found["max.compaction.lag.ms"][0] == LONG_MAX
    assert found["segment.bytes"][0] == str(256 * 1024 * 1024)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("retention.ms", "1234", Policies(retention=Retention.exactly(1234, -1))),
        ("retention.ms", "-1", Policies(retention=Retention(-1, -1))),
        ("retention.bytes", "4097", Policies(retention=Retention.exactly(604_800_000, 4097))),
        ("cleanup.policy", "compact", Policies(log_compaction=LogCompaction(Cleanup.COMPACT))),
        ("cleanup.policy", "", Policies(log_compaction=LogCompaction(Cleanup.NONE))),
        ("cleanup.policy", "delete,compact", Policies(log_compaction=LogCompaction(Cleanup.BOTH))),
        ("delete.retention.ms", "5", Policies(log_compaction=LogCompaction(tombstone_ms=5))),
        ("min.compaction.lag.ms", "6", Policies(log_compaction=LogCompaction(min_lag_ms=6))),
        ("max.compaction.lag.ms", "7", Policies(log_compaction=LogCompaction(max_lag_ms=7))),
        ("max.compaction.lag.ms", LONG_MAX, Policies(log_compaction=LogCompaction(max_lag_ms=-1))),
        ("min.cleanable.dirty.ratio", "0.01", Policies(log_compaction=LogCompaction(dirty_percent=1))),
        ("max.message.bytes", "1000", Policies(max_message_bytes=1000)),
        ("segment.bytes", "1048576", Policies(roll=Roll(bytes=1_048_576))),
        ("segment.ms", "60000", Policies(roll=Roll(ms=60_000))),
    ],
)
def test_an_honoured_config_is_a_policy_and_shown_as_it_was_said(name: str, text: str, expected: Policies) -> None:
    assert CONFIGS[name].honoured
    record = TopicRecord(NAME, 1, *new_topic({name: text}, DEFAULT_POLICIES))
    assert record.policies == expected
    assert values(record)[name] == (text, Source.TOPIC)
    back = changed(record, record.policies.over(DEFAULT_POLICIES), {name: None})
    assert values(back) == values(made())
    assert back.properties == {}


def test_other_configs_are_kept_and_shown_and_said_not_to_be_applied() -> None:
    record = made(min_insync_replicas="2", flush_messages="1")
    assert record.policies == made().policies
    assert values(record)["min.insync.replicas"] == ("2", Source.TOPIC)
    for config in TABLE:
        assert config.honoured or "not applied" in config.meaning or config.choices == ("false",), config.name


def test_a_policy_that_was_set_by_another_way_is_what_is_shown() -> None:
    record = made(retention_ms="1234", cleanup_policy="compact")
    record = replace(record, policies=replace(record.policies, retention=Retention(5, 6)))
    found = values(record)
    assert found["retention.ms"] == ("300000", Source.TOPIC)
    assert found["retention.bytes"] == (str(6 * 1024 * 1024), Source.TOPIC)
    assert change(record, min_insync_replicas="2").policies.retention == Retention(5, 6)
    holds = Policies(retention=Retention(1, -1)).over(DEFAULT_POLICIES)
    by_namespace = {one.config.name: one for one in shown(made(), holds, BrokerDefaults())}["retention.ms"]
    assert (by_namespace.value, by_namespace.source) == ("60000", Source.DYNAMIC_DEFAULT_BROKER)


def test_saying_all_at_once_puts_the_rest_back() -> None:
    record = made(retention_ms="1234", cleanup_policy="compact", min_insync_replicas="2")
    holds = record.policies.over(DEFAULT_POLICIES)
    kept = {"retention.ms": "99"}
    after = changed(record, holds, {**everything_else(record, holds, kept), **kept})
    assert after.properties == {"kafka.retention.ms": "99"}
    assert values(after) == values(made(retention_ms="99"))


def test_words_are_appended_to_what_holds() -> None:
    assert said_list(made(), DEFAULT_POLICIES, "cleanup.policy") == ["delete"]
    assert said_list(made(), DEFAULT_POLICIES, "leader.replication.throttled.replicas") == []
    with pytest.raises(ConfigError, match="not a list"):
        said_list(made(), DEFAULT_POLICIES, "retention.ms")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", str(2**63)),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete,shred"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("max.message.bytes", str(2**31)),
        ("segment.bytes", "100"),
        ("preallocate", "maybe"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "x" * 5000),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        new_topic({name: text}, DEFAULT_POLICIES)


def test_values_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than"):
        made(min_compaction_lag_ms="10", max_compaction_lag_ms="5")


def test_an_unknown_name_is_refused_and_the_nearest_right_one_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean retention\.ms\?"):
        config_named("retention.msec")
    with pytest.raises(ConfigError, match="kafka-topics"):
        config_named("q")


def test_every_default_is_a_value_of_its_config() -> None:
    defaults = BrokerDefaults()
    for config in TABLE:
        text = defaults.of(config)
        assert config.kind is ConfigType.LIST or config.parse(text) is not None, config.name


def test_the_documentation_says_of_every_config_whether_it_is_honoured() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "kafka-topics.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| `")]
    told = {name: row[3].strip() for row in rows for name in re.findall(r"`([a-z0-9.]+)`", row[1])}
    assert told == {config.name: "honoured" if config.honoured else "shown only" for config in TABLE}

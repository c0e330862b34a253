"""The configuration: one table of settings, three sources in order, errors that name the nearest right word."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from weir.broker.metadata.topic_records import TopicLimits
from weir.model.errors import ConfigError
from weir.server.addresses import Address
from weir.server.config.keys import (
    ADDRESS,
    BOUND,
    BOUNDED_SIZE,
    COUNT,
    FLAG,
    NAMES,
    OPTIONAL_ADDRESS,
    SECONDS,
    SIZE,
    SYNC,
    TEXT,
    SettingType,
    one_of,
)
from weir.server.config.load import load
from weir.server.config.part_settings import group_settings, topic_limits
from weir.server.config.tree import KEYS, Config


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (SIZE, 5, 5),
        (SIZE, "5", 5),
        (SIZE, "64MiB", 64 * 1024**2),
        (SIZE, "1.5 kb", 1536),
        (SIZE, "2G", 2 * 1024**3),
        (BOUNDED_SIZE, -1, -1),
        (BOUNDED_SIZE, "-1", -1),
        (BOUNDED_SIZE, "1K", 1024),
        (SECONDS, 3, 3.0),
        (SECONDS, 0.5, 0.5),
        (SECONDS, "200ms", 0.2),
        (SECONDS, "90", 90.0),
        (SECONDS, "2 min", 120.0),
        (SECONDS, "4h", 14400.0),
        (COUNT, "10_000", 10_000),
        (COUNT, 0, 0),
        (BOUND, "-1", -1),
        (FLAG, "on", True),
        (FLAG, "False", False),
        (FLAG, True, True),
        (ADDRESS, "127.0.0.1:6650", Address("127.0.0.1", 6650)),
        (ADDRESS, "[::1]:0", Address("::1", 0)),
        (OPTIONAL_ADDRESS, "", None),
        (NAMES, "a, b", ("a", "b")),
        (NAMES, ["a", "b"], ("a", "b")),
        (NAMES, "", ()),
        (SYNC, "always", None),
        (SYNC, "periodic:5", 0.005),
        (TEXT, "anything", "anything"),
        (one_of("json", "logfmt"), "json", "json"),
    ],
)
def test_values_are_read_as_people_write_them(kind: SettingType[Any], raw: object, value: object) -> None:
    assert kind.parse("k", raw) == value


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SIZE, "big"),
        (SIZE, -5),
        (SIZE, True),
        (SIZE, "5 MiB more"),
        (SECONDS, "5 weeks"),
        (SECONDS, -1),
        (COUNT, "-1"),
        (COUNT, "1.5"),
        (COUNT, True),
        (COUNT, 1.5),
        (BOUND, -2),
        (FLAG, "perhaps"),
        (FLAG, 1),
        (ADDRESS, "nowhere"),
        (ADDRESS, ""),
        (ADDRESS, 6650),
        (NAMES, ["a", 5]),
        (NAMES, "a,,b"),
        (SYNC, "sometimes"),
        (TEXT, 5),
        (one_of("json", "logfmt"), "xml"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_how_to_write_it(kind: SettingType[Any], raw: object) -> None:
    with pytest.raises(ConfigError, match=r"is no value for some\.key") as refused:
        kind.parse("some.key", raw)
    assert refused.value.hint


def test_a_port_offset_moves_all_listeners_wherever_they_were_set(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(
        '[listeners]\nhttp = "127.0.0.1:9000"\nkafka_tls = "[::1]:9093"\nadvertised_host = "a.example"\n'
    )
    given = ["listeners.pulsar=0.0.0.0:6000", "listeners.amqp=127.0.0.1:0", "listeners.rocketmq="]
    loaded = load(file=file, assignments=given, options={"port-offset": "100"})
    listeners = loaded.config.listeners
    assert listeners.http == Address("127.0.0.1", 9100)
    assert listeners.kafka == Address("127.0.0.1", 9192)
    assert listeners.kafka_tls == Address("::1", 9193)
    assert listeners.pulsar == Address("0.0.0.0", 6100)
    assert listeners.amqp == Address("127.0.0.1", 0)  # any free port
    assert listeners.rocketmq is None
    assert listeners.peer is None
    assert loaded.value("listeners.kafka") == listeners.kafka
    assert loaded.origin("listeners.kafka") == "default + listeners.port_offset"
    assert loaded.origin("listeners.pulsar") == "--set + listeners.port_offset"
    assert loaded.origin("listeners.port_offset") == "--port-offset"
    assert load(environment={"WEIR_LISTENERS_PORT_OFFSET": "1"}).config.listeners.http == Address(
        "127.0.0.1", 8081
    )


def test_a_port_above_the_largest_one_is_refused_with_the_largest_offset() -> None:
    assert load(options={"port-offset": "56443"}).config.listeners.kafka == Address("127.0.0.1", 65535)
    with pytest.raises(
        ConfigError, match=r"--port-offset: listeners\.kafka: port 9092 \+ 56444 is above 65535"
    ) as told:
        load(options={"port-offset": "56444"})
    assert told.value.hint == "use an offset of at most 56443"


def test_a_near_miss_among_words_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean warning"):
        load(assignments=["log.level=warn"])


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_setting_has_a_sentence_and_a_default_that_reads_back(key: Any) -> None:
    assert key.doc.strip()
    assert key.kind.parse(key.name, key.kind.show(key.default)) == key.default


def test_every_leaf_of_the_tree_is_a_setting() -> None:
    def count(tree: Any) -> int:
        return sum(
            count(value) if hasattr(value, "__dataclass_fields__") else 1
            for value in (getattr(tree, part.name) for part in fields(tree))
        )

    assert count(Config()) == len(KEYS)


def test_the_later_source_wins_and_each_value_knows_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(
        'data = "from-file"\n[listeners]\npulsar = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n'
        '[storage]\ncache_bytes = "1MiB"\nledger_age = 60\n'
    )
    loaded = load(
        file=file,
        environment={"WEIR_LISTENERS_HTTP": "127.0.0.1:3", "WEIR_STORAGE_CACHE_BYTES": "2MiB", "HOME": "/"},
        assignments=["storage.cache_bytes=3MiB"],
        options={"data": "from-option"},
    )
    config = loaded.config
    assert config.listeners.pulsar == Address("127.0.0.1", 1)
    assert config.listeners.http == Address("127.0.0.1", 3)
    assert config.storage.cache_bytes == 3 * 1024**2
    assert config.storage.ledger_age == 60.0
    assert config.data == "from-option"
    origins = {name: loaded.origin(name) for name in ("listeners.pulsar", "listeners.http", "storage.cache_bytes")}
    assert origins == {
        "listeners.pulsar": str(file),
        "listeners.http": "WEIR_LISTENERS_HTTP",
        "storage.cache_bytes": "--set",
    }
    assert loaded.origin("data") == "--data"
    assert loaded.origin("storage.sync") == "default"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("listners.pulsar=127.0.0.1:0", "did you mean listeners.pulsar"),
        ("pulsar=127.0.0.1:0", "did you mean listeners.pulsar"),
        ("storage.cashe_bytes=1", "did you mean storage.cache_bytes"),
        ("zzz=1", "weir config show"),
        ("listeners.pulsar", "key=value"),
        ("storage.cache_bytes=much", "64MiB"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match="--set") as refused:
        load(assignments=[assignment])
    assert says in str(refused.value)


def test_a_secret_that_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "weir.toml"
    path.write_text("[auth]\ntoken_secret = 8675309\n")
    for given in ({"file": path}, {"assignments": ["auth.token_secret:8675309"]}):
        with pytest.raises(ConfigError) as refused:
            load(**given)  # type: ignore[arg-type]
        assert "8675309" not in str(refused.value)
        assert "auth.token_secret" in str(refused.value)


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_text("[storage]\nsink = 'always'\n")
    with pytest.raises(ConfigError, match=r"weir\.toml: there is no setting 'storage\.sink'.*storage\.sync"):
        load(file=file)


@pytest.mark.parametrize(("content", "says"), [(b"= no", "is not TOML"), (b"\xff", "is not TOML")])
def test_a_file_that_is_not_toml_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load(file=file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(file=tmp_path / "none.toml")


def test_an_unknown_variable_of_ours_names_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"WEIR_LISTENER_HTTP is no setting.*WEIR_LISTENERS_HTTP"):
        load(environment={"WEIR_LISTENER_HTTP": "127.0.0.1:0"})


def test_variables_of_the_command_line_and_of_kubernetes_are_left_alone() -> None:
    environment = {"WEIR_URL": "x", "WEIR_TOKEN": "x", "WEIR_PORT": "tcp://x", "WEIR_PORT_6650_TCP": "x"}
    assert load(environment=environment | {"WEIR_SERVICE_HOST": "10.0.0.1"}).config == Config()


def test_the_environment_reaches_every_setting() -> None:
    environment = {key.variable: key.kind.show(key.default) for key in KEYS.values()}
    assert len(environment) == len(KEYS)
    assert load(environment=environment).config == Config()


def test_the_documentation_has_every_setting_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()
    for key in KEYS.values():
        default = key.show(key.default)
        shown = f"`{default}`" if default else ""
        assert f"| `{key.name}` | {shown} | {key.doc} |" in page, key.name


@pytest.mark.parametrize(("retention", "sweep_s"), [("7d", 600), ("10m", 300), ("1s", 1)])
def test_positions_are_looked_after_often_enough_for_the_time_that_they_are_kept(
    retention: str, sweep_s: float
) -> None:
    config = load(assignments=[f"groups.retention={retention}"]).config
    assert group_settings(config).sweep_s == sweep_s


def test_how_many_topics_and_partitions_there_may_be_is_configured() -> None:
    assert topic_limits(Config()) == TopicLimits()
    assignments = ["limits.partitions=5", "limits.topics=7", "limits.topic_records=9"]
    assert topic_limits(load(assignments=assignments).config) == TopicLimits(5, 7, cached=9)

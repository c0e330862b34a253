"""Files of connectors: what is right, what is refused and why; keys are hashed as Kafka's clients do it."""

import json

import pytest

from weir.connect.definitions import check_alone, check_update, parse, parse_name, read_file
from weir.connect.options import PLACES, TYPES, Secret, parse_bytes, parse_ms
from weir.model.definitions import Connector
from weir.model.errors import ConfigError
from weir.model.topics import TopicName
from weir.wire.kafka.partitioner import murmur2

GOOD = """
name = "orders"
topic = "orders"

[source]
type = "postgresql"
dsn = "host=db dbname=shop user=weir"
password = { env = "SHOP_PASSWORD" }
table = "orders"
column = "id"
poll = "250ms"
"""


def test_a_file_is_read_with_its_defaults_and_its_secrets_by_name() -> None:
    name, kept = read_file(GOOD, "orders.toml")
    found = parse(name, kept)
    assert (str(found.name), found.label) == ("persistent://public/default/orders", "postgresql-source")
    assert found.options["password"] == Secret("env", "SHOP_PASSWORD")
    assert (found.options["poll"], found.options["batch"]) == (250, 1000)
    assert [str(topic) for topic in found.topics] == ["persistent://public/default/orders"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{ env = \"SHOP_PASSWORD\" }", '"hunter2"'), "password is a secret"),
        (("user=weir", "user=weir password=hunter2"), "has a password in it"),
        (("user=weir", "user=weir sslpassword=hunter2"), "has a password in it"),
        (("host=db dbname=shop user=weir", "postgresql://weir:hunter2@db/shop"), "has a password in it"),
        (('type = "postgresql"', 'type = "oracle"'), "there is no source 'oracle'"),
        (('column = "id"', ""), "needs column"),
        (('poll = "250ms"', 'poll = "often"'), "poll is 'often'"),
        (('poll = "250ms"', 'pol = "1s"'), "pol is not known"),
        (("[source]", "[sauce]"), "sauce is not known"),
        (('topic = "orders"', ""), "names no topic"),
        (('topic = "orders"', 'topics = ["a", "b"]'), "a source writes one topic"),
        (('name = "orders"', 'name = "a b/c"'), "cannot be the name"),
        (("[source]", "[source"), "is no TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_no_secret_is_told(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(GOOD.replace(*change), "orders.toml")
    assert said in caught.value.what
    assert "hunter2" not in caught.value.what or "password is" not in said


_FILES = 'topic = "t"\n[source]\ntype = "files"\npath = "/x"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'{_FILES}patern = "*"', "patern is not known (did you mean pattern?)"),
        ('topic = "t"\npath = "/x"\n[source]\ntype = "files"', "path is not known (write it below [source])"),
        (_FILES.replace("/x", "ftp://a/b"), "of a kind that is not known"),
        ('topic = "t"\n[sink]\ntype = "http"\nurl = "http://a/b c"', "as %20"),
        (f'{_FILES}access_key = {{ env = "A" }}', "access_key and secret_key belong together"),
        (f"{_FILES}poll = 2024-01-01", "poll is '2024-01-01' (a span, such as \"500ms\""),
        (f'{_FILES}[sink]\ntype = "files"\npath = "/y"', "has both [source] and [sink]: make it two"),
        ('topic = "a b/c"\n[source]\ntype = "files"\npath = "/x"', "connector c: 'a b/c' is not a topic name"),
        ('topic = "t"\n[source]\ntype = "http"\nurl = "a.b"\ncursor = "c"', "url is 'a.b' (http://"),
        ('topic = "t"\n[source]\ntype = "http"\nurl = "http://a"', "needs cursor or cursor_field"),
        ('topic = "t"\n[source]\ntype = "postgresql"\ndsn = "host=a"\ncolumn = "id"', "needs table or query"),
        ('[source]\ntype = "pulsar"\nservice_url = "a:6650"\ntopics = "t"', "service_url is 'a:6650' (pulsar://"),
        ('[source]\ntype = "kafka"\nbootstrap_servers = "a"\ntopics = "t"\nusername = "u"', "has no password"),
    ],
)
def test_what_does_not_go_together_is_told_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(text, "c.toml", "c")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_topics_without_a_namespace_are_in_the_connectors_own() -> None:
    said = json.dumps({"topics": ["a", "x/y/b"], "sink": {"type": "files", "path": "/tmp"}})
    found = parse(parse_name("acme/shop/c"), said)
    assert [str(topic) for topic in found.topics] == ["persistent://acme/shop/a", "persistent://x/y/b"]


def test_every_option_says_what_it_means() -> None:
    assert all(option.about for kinds in TYPES.values() for table in kinds.values() for option in table.values())


def test_a_secret_comes_from_a_variable_or_a_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("WEIR_TEST_SECRET", "one")
    (tmp_path / "secret").write_text("two\n")
    assert Secret("env", "WEIR_TEST_SECRET").reveal() == "one"
    assert Secret("file", str(tmp_path / "secret")).reveal() == "two"
    with pytest.raises(ConfigError, match="NO_SUCH is not set"):
        Secret("env", "NO_SUCH").reveal()


def test_spans_and_sizes() -> None:
    assert [parse_ms(text) for text in ("5ms", "2s", "3min", "1h", "1d", "5", "-1s")] == [
        *(5, 2_000, 180_000, 3_600_000, 86_400_000),
        *(None, None),
    ]
    assert [parse_bytes(text) for text in ("10", "64MB", "1KiB", "0", "x")] == [10, 64_000_000, 1024, None, None]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_kafkas_own_client_does(key: bytes, wanted: int) -> None:
    assert murmur2(key) == wanted & 0xFFFFFFFF


def test_two_sinks_of_one_name_do_not_share_a_subscription() -> None:
    """It is named after the sink; each would leave out what the other has written."""
    one, two, elsewhere = (
        read_file(
            f'name = "{name}"\ntopic = "{topic}"\n[sink]\ntype = "files"\npath = "/srv"\nformat = "json"', "f"
        )
        for name, topic in (("a/b/out", "public/default/t"), ("out", "t"), ("a/c/out", "u"))
    )
    there = _kept(*one)
    with pytest.raises(ConfigError, match="a/b/out reads persistent://public/default/t by the same subscription"):
        check_alone(parse(*two), [there])
    for fine in (one, elsewhere):
        check_alone(parse(*fine), [there])


def _kept(name: TopicName, config: str) -> Connector:
    return Connector(name, "id", config)


def _updated(before: str, after: str) -> None:
    check_update(*(parse(*read_file(text, "c.toml", "c")) for text in (before, after)))


_SINK = 'topics = ["a", "b"]\n[sink]\ntype = "http"\nurl = "http://here"\n'
_SOURCE = 'topic = "a"\n[source]\ntype = "postgresql"\ndsn = "host=here"\ntable = "t"\ncolumn = "id"\n'
_COPY = 'topic = "a"\n[source]\ntype = "kafka"\nbootstrap_servers = "h:1"\ntopics = ["x", "y"]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_SINK, _SINK.replace("here", "there") + "batch = 7\n"),
        (_SINK, _SINK.replace('"b"', '"b", "c"')),
        (_SOURCE, _SOURCE + 'poll = "5ms"\nbatch = 2\ncolumns = ["id", "n"]\n'),
        (_COPY, _COPY.replace("h:1", "h:1,h:2").replace('"y"', '"y", "z"')),
    ],
)
def test_an_update_may_change_what_positions_do_not_belong_to(before: str, after: str) -> None:
    _updated(before, after)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (_SINK, _SOURCE, "is a http sink, and no postgresql source"),
        (_SINK, _SINK.replace(', "b"', ""), "cannot take persistent://public/default/b away"),
        (_SINK, _SINK + 'start = "latest"\n', "cannot change start"),
        (_SOURCE, _SOURCE.replace('"t"', '"u"'), "cannot change table"),
        (_SOURCE, _SOURCE.replace('"a"', '"b"'), "cannot change the topic that it writes"),
        (_COPY, _COPY.replace(', "y"', ""), "cannot take y away"),
    ],
)
def test_an_update_that_would_take_positions_for_those_of_others_is_refused(
    before: str, after: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        _updated(before, after)


def test_all_options_that_positions_belong_to_are_options() -> None:
    assert set(PLACES) == {(side, kind) for side, types in TYPES.items() for kind in types}
    for (side, kind), names in PLACES.items():
        assert set(names) <= set(TYPES[side][kind])

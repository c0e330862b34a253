"""`weir lake` as its users type it; tables are written without Spark, as `--master none` does."""

import json
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from weir.cli.main import cli
from weir.client.admin import Access, ask
from weir.model.topics import NamespaceName, TopicName
from weir.spark.lake.catalog import Definition, namespace_lake
from weir.spark.lake.topics import hold_one, let_go_internal
from weir.spark.tables.names import WeirCluster

from .conftest import Topics

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]


@pytest.fixture
def weir(topics: Topics):  # type: ignore[no-untyped-def]
    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, [*words, "--url", topics.up.http_url])

    return run


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def lag_in_metrics(topics: Topics, topic: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{topics.up.http_url}/metrics", timeout=60) as answer:
        found = text_string_to_metric_families(answer.read().decode())
    return {
        sample.labels["topic"].rpartition("/")[2]: int(sample.value)
        for family in found
        for sample in family.samples
        if sample.name == "weir_subscription_backlog_messages"
        and sample.labels["subscription"] == "lake"
        and f"/{topic}-partition-" in sample.labels["topic"]
    }


def test_a_topic_is_turned_on_exported_looked_at_and_turned_off(weir, topics: Topics, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    topic = topics.create(2)
    topics.fill(topic, ["a", "b"], 0)
    done(weir("lake", "on", topic, "--to", str(tmp_path / "a lake"), "--keep", "365d"))
    before = json.loads(done(weir("lake", "status", topic, "--json")))
    assert [(one["partition"], one["exported"], one["lag"]) for one in before] == [(0, None, 2), (1, None, 0)]

    assert lag_in_metrics(topics, topic) == {f"{topic}-partition-0": 2, f"{topic}-partition-1": 0}

    told = json.loads(done(weir("lake", "run", "--once", "--master", "none", "--json")))
    assert [(one["topic"], one["rows"]) for one in told["exported"]] == [
        (f"persistent://public/default/{topic}", 2)
    ]
    after = json.loads(done(weir("lake", "status", topic, "--json")))
    assert [(one["partition"], one["exported"], one["end"], one["lag"]) for one in after] == [
        (0, 2, 2, 0),
        (1, 0, 0, 0),
    ]
    assert lag_in_metrics(topics, topic) == {f"{topic}-partition-0": 0, f"{topic}-partition-1": 0}
    assert after[0]["table"] == f"file://{tmp_path}/a lake/public/default/{topic}"
    assert "everything is in the lake" in done(weir("lake", "run", "--once", "--master", "none"))
    assert "lake" in done(weir("subscriptions", "list", topic))
    assert "files of old days removed: 1" in done(weir("lake", "upkeep")), "the messages are of 2023"
    assert "nothing to do" in done(weir("lake", "upkeep"))
    assert "running exports" in str(weir("lake", "upkeep", "--orphans", "1min").exception)

    assert "no longer" in done(weir("lake", "off", topic))
    assert json.loads(done(weir("lake", "status", topic, "--json"))) == []
    assert "lake" not in done(weir("subscriptions", "list", topic))


def test_a_table_that_cannot_be_looked_after_is_told_and_the_exit_code_says_so(  # type: ignore[no-untyped-def]
    weir, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    done(weir("lake", "on", topic, "--to", str(tmp_path)))
    for value in ("a", "b"):
        topics.fill(topic, [value])
        done(weir("lake", "run", "--once", "--master", "none"))
    file = next(tmp_path.rglob("*.parquet"))
    file.unlink()
    result = weir("lake", "upkeep", "--master", "none", "--files", "2")
    assert result.exit_code == 1
    assert "retried later" in result.output
    assert "1 topic was not maintained" in str(result.exception)
    done(weir("lake", "off", topic))


def test_a_namespace_is_on_with_topics_that_come_later_and_one_of_them_can_be_off(
    weir,
    topics: Topics,
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    done(weir("namespaces", "create", "public/lakes"))
    done(weir("lake", "on", "public/lakes", "--to", str(tmp_path)))
    for name in ("one", "two"):
        topics.create(name=f"public..lakes..{name}")
    done(weir("lake", "off", "public/lakes/two"))
    listed = json.loads(done(weir("lake", "status", "public/lakes", "--json")))
    assert [one["topic"] for one in listed] == ["persistent://public/lakes/one"]
    access = Access(topics.up.http_url)
    found = namespace_lake(access, NamespaceName.parse("public/lakes"))
    assert found.every is not None
    assert found.every.text() == Definition(f"file://{tmp_path}", f"sqlite:///{tmp_path}/catalog.db").text()
    assert found.every.owner
    assert found.topics == {"two": None}
    done(weir("lake", "off", "public/lakes"))


def test_only_topics_that_are_in_the_lake_keep_what_is_not_exported(weir, topics: Topics, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def held() -> list[str]:
        names = ("own", "shared", "without")
        return [name for name in names if "lake" in done(weir("subscriptions", "list", f"public/held/{name}"))]

    done(weir("namespaces", "create", "public/held"))
    for name in ("own", "shared", "without"):
        topics.create(name=f"public..held..{name}")
    done(weir("lake", "on", "public/held", "--to", str(tmp_path)))
    assert held() == ["own", "shared", "without"]
    done(weir("lake", "off", "public/held/without"))
    done(weir("lake", "on", "public/held/own", "--to", str(tmp_path), "--keep", "1d"))
    assert "(2 topics now)" in done(weir("lake", "on", "public/held", "--to", str(tmp_path), "--keep", "2d"))
    assert held() == ["own", "shared"]
    done(weir("lake", "off", "public/held"))
    assert held() == ["own"], "what is said of a topic goes before its namespace"
    done(weir("lake", "off", "public/held/own"))
    assert held() == []


def test_a_topic_without_partitions_has_a_standing_as_others_have(weir, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done(weir("topics", "create", "alone"))
    done(weir("produce", "alone", "a"))
    done(weir("lake", "on", "alone", "--to", str(tmp_path)))
    done(weir("lake", "run", "--once", "--master", "none"))
    (told,) = json.loads(done(weir("lake", "status", "alone", "--json")))
    assert (told["partition"], told["exported"], told["end"], told["tiered"]) == (0, 1, 1, None)
    done(weir("lake", "off", "alone"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--option", "s3.secret-access-key=x"), "is a secret"),
        (("--catalog", "postgresql://me:pass@host/db"), "has a password"),
        (("--to", "ftp://host/x"), "not known"),
        (("--to", "s3://"), "names no bucket"),
        (("--to", "file://folder/x"), "names a machine"),
        (("--catalog", "mysql://host/x"), "not known"),
        (("--catalog", "postgresql://me@127.0.0.1:1/db"), "Connection refused"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_changed(weir, topics: Topics, words, said) -> None:  # type: ignore[no-untyped-def]
    topic = topics.create()
    result = weir("lake", "on", topic, *words)
    assert result.exit_code != 0
    assert said in f"{result.output} {result.exception}"
    assert "\n" not in str(result.exception), "in a line"
    assert json.loads(done(weir("lake", "status", topic, "--json"))) == []


def test_a_topic_that_is_not_there_cannot_be_turned_on_and_is_not_in_the_lake_when_it_is_made(  # type: ignore[no-untyped-def]
    weir, topics: Topics
) -> None:
    result = weir("lake", "on", "later")
    assert "no such topic" in f"{result.output} {result.exception}"
    topics.create(name="later")
    assert json.loads(done(weir("lake", "status", "later", "--json"))) == []
    assert "was not in the lake" in done(weir("lake", "off", "later"))
    assert "the lake is on for no topic" in done(weir("lake", "run", "--once", "--master", "none"))


def test_internal_topics_of_a_namespace_are_left_out_unless_they_are_named(
    weir, topics: Topics, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    done(weir("namespaces", "create", "public/inner"))
    internal = ("fn-clean-retry", "fn-clean-state", "connect-files-1-positions", "in-billing-RETRY", "said")
    for name in ("in", "in-billing-DLQ", *internal):
        topics.create(name=f"public..inner..{name}")
    body = {
        "code": "def clean(x): return x",
        "entry": "clean",
        "inputs": ["persistent://public/inner/in"],
        "options": {"log_topic": "said"},
    }
    access = Access(topics.up.http_url)
    ask(access, "POST", "functions/public/inner/clean", body)
    try:
        result = weir("lake", "on", "public/inner", "--to", str(tmp_path))
        assert "(2 topics now)" in done(result)
        assert "5 internal topics are skipped" in result.stderr

        def listed() -> set[str]:
            found = json.loads(done(weir("lake", "status", "public/inner", "--json")))
            return {one["topic"].rpartition("/")[2] for one in found}

        assert listed() == {"in", "in-billing-DLQ"}
        # An earlier release has exported it: what is held back for that would stay for ever.
        held = ("subscriptions", "list", "public/inner/fn-clean-retry")
        place = WeirCluster(access, topics.servers)
        with topics.cluster() as cluster:
            hold_one(cluster, TopicName.parse("public/inner/fn-clean-retry"))
        assert "lake" in done(weir(*held))
        let_go_internal(place)
        assert "lake" not in done(weir(*held))
        done(weir("lake", "on", "public/inner/fn-clean-state", "--to", str(tmp_path)))
        done(weir("lake", "on", "public/inner/said", "--to", str(tmp_path)))
        assert listed() == {"in", "in-billing-DLQ", "fn-clean-state", "said"}
    finally:
        ask(access, "DELETE", "functions/public/inner/clean")
        for what in ("public/inner/fn-clean-state", "public/inner/said", "public/inner"):
            weir("lake", "off", what)

"""The dashboard and the alerts in `deploy/` ask for nothing that a real `/metrics` does not have."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser as promql
import pulsar
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

DEPLOY = Path(__file__).parents[2] / "deploy"
#: What Prometheus itself puts on every series, and what it makes of a scrape.
OF_PROMETHEUS = {"instance", "job", "le"}
BY_PROMETHEUS = {"up"}
TIMEOUT_MS = 60_000


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "weir.json").read_text())
    return found


def expressions() -> list[str]:
    targets = [target for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    asked = [target["expr"].replace("$__rate_interval", "1m") for target in targets]
    return [*asked, *(rule["expr"] for rule in alerts())]


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Every metric that an expression asks for, with the labels that it must have."""
    match node:
        case promql.VectorSelector():
            yield node.name, {matcher.name for matcher in node.matchers.matchers}
        case promql.MatrixSelector():
            yield from selectors(node.vector_selector)
        case promql.AggregateExpr():
            kept = set(node.modifier.labels) if node.modifier is not None else set()
            yield from ((name, labels | kept) for name, labels in selectors(node.expr))
        case promql.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql.ParenExpr() | promql.UnaryExpr():
            yield from selectors(node.expr)
        case promql.NumberLiteral():
            pass
        case _:
            raise AssertionError(f"what is asked by {type(node).__name__} is not known: {node}")


@pytest.fixture
def scraped(weir: Any, client: pulsar.Client, unique: str) -> dict[str, set[str]]:
    """The labels of each series of a broker on which a little of everything has happened."""
    name = f"persistent://public/default/{unique}"
    consumer = client.subscribe(name, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(name)
    producer.send(b"now")
    producer.send(b"later", deliver_after=timedelta(days=1))
    consumer.acknowledge(consumer.receive(TIMEOUT_MS))
    sql = {"sql": f"SELECT * FROM `{unique}`", "sources": [name]}
    weir.do("PUT", f"/admin/weir/v1/streams/public/default/{unique}-out", sql)
    function, connector = (
        f"/admin/weir/v1/{kind}/public/default/{unique}" for kind in ("functions", "connectors")
    )
    weir.do("POST", function, {"code": "def f(message): ...", "entry": "f", "inputs": [name]})
    told = {"state": "running", "lag": 3}
    weir.do("PUT", f"{connector}", {"config": "{}"})
    weir.do("PUT", f"{connector}/progress", told | {"id": weir.do("GET", connector)["id"]})
    text = weir.ask("GET", "/metrics").body.decode()
    for path in (f"/admin/weir/v1/streams/public/default/{unique}-out", function, connector):
        weir.do("DELETE", path)
    assert f'weir_topic_held_messages{{topic="{name}"}} 1' in text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_all_that_is_asked_for_is_there(scraped: dict[str, set[str]]) -> None:
    for expression in expressions():
        for name, labels in selectors(promql.parse(expression)):
            if name in BY_PROMETHEUS:
                continue
            assert name in scraped, f"{name} in: {expression}"
            missing = labels - OF_PROMETHEUS - scraped[name]
            assert not missing or not scraped[name], f"{name} has no {missing} in: {expression}"


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "do"}, rule["alert"]
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    told = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name in names if f"`{name}`" not in told] == []


def test_every_panel_of_the_dashboard_says_what_it_shows() -> None:
    shown = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in shown)
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])

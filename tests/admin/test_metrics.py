"""Metrics: what Prometheus' own parser reads back is what went in."""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from weir.admin.metrics import (
    LATENCY_FAMILIES,
    PROCESS_FAMILIES,
    SUBSCRIPTION_FAMILIES,
    TOPIC_FAMILIES,
    UP_SECONDS,
    connector_families,
    function_families,
    render,
    stream_families,
)
from weir.bookie.damage import Damages
from weir.broker.api.consumers import ConsumerLimit, SubscriptionType
from weir.broker.api.definitions import Deployed, DescribedConnector
from weir.broker.api.stats import BOUNDS_S, Flow, Latency, QueryProgress, SubscriptionStats, TopicStats
from weir.broker.balance.balancer import BalanceMetrics
from weir.broker.peers.peer_calls import PeerMetrics
from weir.gateway.amqp.gateway import amqp_families
from weir.gateway.amqp.settings import AmqpMetrics
from weir.gateway.rocketmq.gateway import rocketmq_families
from weir.gateway.rocketmq.settings import RocketmqMetrics
from weir.model.definitions import Connector, ConnectorProgress, ConnectorWanted, Function, FunctionStats
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import LoopHolds
from weir.runtime.real import real_runtime
from weir.server.config.tree import Config
from weir.server.gateway_metrics import GatewayMetrics, gateway_families
from weir.server.listeners import open_families
from weir.server.metrics import (
    balance_families,
    budget_families,
    cluster_families,
    damage_families,
    loop_families,
    peer_families,
    process_families,
)


def topic(name: str) -> TopicStats:
    took = Latency(tuple(range(len(BOUNDS_S) + 1)), 12.5)
    subscription = SubscriptionStats(
        'a "quoted"\\ name', SubscriptionType.SHARED, True, 7, 700, 1.5, 3, 10, 0, 12, Flow(5, 50, 0.5, 5.0), 2, 1
    )
    return TopicStats(
        name,
        Flow(10, 1000, 1.0, 100.0),
        Flow(5, 500, 0.5, 50.0),
        4096,
        0,
        10,
        1,
        False,
        0,
        8,
        2,
        took,
        took,
        (),
        (subscription,),
    )


def test_prometheus_reads_back_what_was_said() -> None:
    text = "".join(render([topic("persistent://public/default/a"), topic("b")], {UP_SECONDS: 3}))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    backlog = families["weir_subscription_backlog_messages"].samples[0]
    assert (backlog.labels["subscription"], backlog.value) == ('a "quoted"\\ name', 7)
    assert families["weir_up_seconds"].samples[0].value == 3
    published = families["weir_topic_published_messages"].samples
    assert [(s.labels["topic"], s.value) for s in published] == [("persistent://public/default/a", 10), ("b", 10)]
    latency = {s.name: s.value for s in families["weir_topic_publish_latency_seconds"].samples}
    assert latency["weir_topic_publish_latency_seconds_count"] == sum(range(len(BOUNDS_S) + 1))


def test_only_queries_have_the_metrics_of_queries() -> None:
    plain = topic("a")
    of_query = replace(plain.subscriptions[0], name="report", query=QueryProgress(3, 10, 2.5, 4))
    text = "".join(render([replace(plain, subscriptions=(plain.subscriptions[0], of_query))]))
    found = {
        family.name.removeprefix("weir_subscription_query_"): [
            (sample.labels["subscription"], sample.value) for sample in family.samples
        ]
        for family in text_string_to_metric_families(text)
        if "query" in family.name
    }
    said = {"batches": 3, "batch_rows": 10, "rows_per_second": 2.5, "lost": 4}
    assert found == {name: [("report", value)] for name, value in said.items()}


def test_every_family_has_one_name_and_a_help_text() -> None:
    families = [*PROCESS_FAMILIES, *TOPIC_FAMILIES, *SUBSCRIPTION_FAMILIES, *LATENCY_FAMILIES]
    assert len({family.name for family in families}) == len(families)
    assert all(family.help.endswith(".") for family in families)


class _Balance:
    """A broker that never led."""

    leading = False
    metrics = BalanceMetrics()


def test_no_family_is_missing_from_the_documentation() -> None:
    """Whatever module it is made in: what the next test does not know of is found here."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "reference" / "metrics.md").read_text()
    modules = [
        *root.glob("src/weir/server/metrics.py"),
        *root.glob("src/weir/admin/metrics.py"),
        *root.glob("src/weir/server/gateway_metrics.py"),
        *root.glob("src/weir/gateway/*/gateway.py"),
    ]
    names = {name for module in modules for name in re.findall(r'"(weir_\w+)"', module.read_text())}
    assert len(names) > 80
    assert {name for name in names if f"`{name}`" not in page} == set()


def test_the_documentation_names_every_family_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    gateways = [
        *process_families(real_runtime().resources, 0.0),
        *open_families(Config(), {}),
        *loop_families(LoopHolds()),
        *budget_families(RequestBudget(1), ByteBudget(1), ByteBudget(1), real_runtime().net),
        *damage_families(Damages(), skipped_entries=0),
        *gateway_families(GatewayMetrics.empty(), ConsumerLimit()),
        *amqp_families(AmqpMetrics()),
        *rocketmq_families(RocketmqMetrics()),
        *peer_families(PeerMetrics()),
        *cluster_families(1, [], "b", draining=False),
        *balance_families(_Balance()),  # type: ignore[arg-type]
        *stream_families([], runner=False),
        *function_families([], runner=False),
        *connector_families([], runner=False),
    ]
    families = (*PROCESS_FAMILIES, *gateways, *TOPIC_FAMILIES, *SUBSCRIPTION_FAMILIES)
    kinds = [(f.name, f.kind, f.help) for f in families]
    assert told == kinds + [(f.name, "histogram", f.help) for f in LATENCY_FAMILIES]


def test_an_empty_broker_has_metrics_too() -> None:
    assert list(text_string_to_metric_families("".join(render([]))))


def test_functions_and_connectors_say_what_their_runners_told() -> None:
    name = TopicName.parse("clean")
    function = Function(name, "1", 1, "", "f.py", "f", (TopicName.parse("orders"),))
    stats = FunctionStats(
        "1", 1, "running", received=9, sent=8, failed=3, retried=2, dead=1, lag=4, latency_p50_ms=2.5, instances=2
    )
    connector = Connector(name, "2", "{}", ConnectorWanted.PAUSED)
    progress = ConnectorProgress("2", "paused", records=7, dead_letters=1, restarts=3, batch_ms=250)
    asked = [
        *function_families([Deployed(function, stats)], runner=True),
        *connector_families([DescribedConnector(connector, progress)], runner=True),
    ]
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families("".join(render([], {}, asked)))
        for sample in family.samples
        if sample.labels.get("quantile", "0.5") == "0.5"
    }
    said = {"received_messages_total": 9, "sent_messages_total": 8, "failures_total": 3, "retries_total": 2}
    said |= {"dead_letters_total": 1, "lag_messages": 4, "latency_seconds": 0.0025, "instances": 2, "running": 1}
    assert {key: found[f"weir_function_{key}"] for key in said} == said
    told = {"wanted": 0, "running": 0, "records_total": 7, "dead_letters_total": 1, "restarts_total": 3}
    assert {key: found[f"weir_connector_{key}"] for key in told} == told
    assert (found["weir_connector_batch_seconds"], "weir_connector_lag_messages" in found) == (0.25, False)
    nobody = function_families([Deployed(function, stats)], runner=False)
    gone = {family.name: family.values[0][1] for family in nobody if family.values}
    assert (gone["weir_function_running"], gone["weir_function_instances"]) == (0, 0)
    assert "weir_function_lag_messages" not in gone, "what a dead worker reported is no lag"

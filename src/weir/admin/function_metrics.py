"""Functions and connectors as families of the metrics page, as their runners last told: every broker of a cluster
knows the same."""

from collections.abc import Callable, Mapping, Sequence

from weir.admin.metrics import GatewayFamily
from weir.broker.api import Deployed, DescribedConnector
from weir.model.connectors import ConnectorProgress, ConnectorWanted
from weir.model.functions import FunctionStats, FunctionWanted

#: Name, kind, help, and what it is of what was told.
_FUNCTION: Sequence[tuple[str, str, str, Callable[[FunctionStats], float]]] = (
    ("received_messages_total", "counter", "Messages that the function has taken.", lambda s: s.received),
    ("sent_messages_total", "counter", "Messages that it has sent.", lambda s: s.sent),
    ("failures_total", "counter", "Times that it failed at a message.", lambda s: s.failed),
    ("retries_total", "counter", "Times that a message was put back to be tried again.", lambda s: s.retried),
    ("dead_letters_total", "counter", "Messages that were given up.", lambda s: s.dead),
    ("state_keys", "gauge", "Keys that it has state of.", lambda s: s.state_keys),
    ("state_bytes", "gauge", "How large its state is.", lambda s: s.state_bytes),
    ("restarts_total", "counter", "Times that its worker was started again after it died.", lambda s: s.restarts),
    ("worker_failures", "gauge", "How often its worker died since it last worked.", lambda s: s.failures),
)
_CONNECTOR: Sequence[tuple[str, str, str, Callable[[ConnectorProgress], float]]] = (
    ("records_total", "counter", "Records that the connector has carried.", lambda p: p.records),
    ("records_per_second", "gauge", "How fast it carries them.", lambda p: p.records_per_second),
    ("dead_letters_total", "counter", "Records that could not be carried.", lambda p: p.dead_letters),
    ("restarts_total", "counter", "Times that it was opened again after a failure.", lambda p: p.restarts),
    ("failures", "gauge", "How often it failed since it last worked.", lambda p: p.failures),
    ("batch_seconds", "gauge", "How long its last batch took.", lambda p: p.batch_ms / 1000),
)
_QUANTILES: Sequence[tuple[str, Callable[[FunctionStats], float]]] = (
    ("0.5", lambda s: s.latency_p50_ms),
    ("0.99", lambda s: s.latency_p99_ms),
)


def function_families(functions: Sequence[Deployed], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [
        ({"function": str(one.function.name)}, one.function, one.stats or FunctionStats("", 0, ""))
        for one in functions
    ]
    latencies = [
        ({**labels, "quantile": quantile}, of(stats) / 1000)
        for labels, _, stats in said
        for quantile, of in _QUANTILES
    ]
    return [
        _family("weir_function_runner", "1 while a process runs the functions.", [({}, int(runner))]),
        _family(
            "weir_function_wanted",
            "1 for a function that shall run, 0 for one that is stopped.",
            [(labels, int(function.wanted is FunctionWanted.RUNNING)) for labels, function, _ in said],
        ),
        _family(
            "weir_function_running",
            "1 for a function that runs, as its worker says.",
            [(labels, int(runner and stats.state == "running")) for labels, _, stats in said],
        ),
        _family(
            "weir_function_instances",
            "Processes that call the function.",
            [(labels, stats.instances if runner else 0) for labels, _, stats in said],
        ),
        _family(
            "weir_function_lag_messages",
            "Messages that wait for the function, while a process runs the functions.",
            [(labels, stats.lag) for labels, _, stats in said if runner],
        ),
        *(
            GatewayFamily(f"weir_function_{name}", kind, text, [(labels, of(stats)) for labels, _, stats in said])
            for name, kind, text, of in _FUNCTION
        ),
        _family(
            "weir_function_latency_seconds",
            "How long a message takes from being read to the commit, by quantile; a micro-batch on Spark.",
            latencies,
        ),
    ]


def connector_families(connectors: Sequence[DescribedConnector], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [
        ({"connector": str(one.connector.name)}, one.connector, one.progress or ConnectorProgress("", ""))
        for one in connectors
    ]
    return [
        _family("weir_connector_runner", "1 while a process runs the connectors.", [({}, int(runner))]),
        _family(
            "weir_connector_wanted",
            "1 for a connector that shall run, 0 for one that is paused or stopped.",
            [(labels, int(connector.wanted is ConnectorWanted.RUNNING)) for labels, connector, _ in said],
        ),
        _family(
            "weir_connector_running",
            "1 for a connector that runs, as its runner says.",
            [(labels, int(runner and progress.state == "running")) for labels, _, progress in said],
        ),
        _family(
            "weir_connector_lag_messages",
            "Messages that wait for the connector, where it knows, while a process runs the connectors.",
            [(labels, progress.lag) for labels, _, progress in said if runner and progress.lag >= 0],
        ),
        *(
            GatewayFamily(f"weir_connector_{name}", kind, text, [(labels, of(told)) for labels, _, told in said])
            for name, kind, text, of in _CONNECTOR
        ),
    ]


def _family(name: str, text: str, values: Sequence[tuple[Mapping[str, str], float]]) -> GatewayFamily:
    return GatewayFamily(name, "gauge", text, values)

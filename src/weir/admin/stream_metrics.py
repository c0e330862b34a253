"""Streams that SQL has defined, as families of the metrics page: every broker of a cluster knows the same."""

from collections.abc import Sequence

from weir.admin.metrics import GatewayFamily
from weir.broker.api import Described
from weir.model.sql_streams import StreamProgress, Wanted

_NOTHING_SAID = StreamProgress("", "")


def stream_families(streams: Sequence[Described], *, runner: bool) -> list[GatewayFamily]:
    """`runner`: whether some process runs them now."""
    said = [({"stream": str(one.stream.name)}, one, one.progress or _NOTHING_SAID) for one in streams]
    return [
        GatewayFamily("weir_stream_runner", "gauge", "1 while a process runs the streams.", [({}, int(runner))]),
        GatewayFamily(
            "weir_stream_wanted",
            "gauge",
            "1 for a stream that shall run, 0 for one that is paused.",
            [(labels, int(one.stream.wanted is Wanted.RUNNING)) for labels, one, _ in said],
        ),
        GatewayFamily(
            "weir_stream_running",
            "gauge",
            "1 for a stream that runs, as its runner says.",
            [(labels, int(runner and progress.state == "running")) for labels, _, progress in said],
        ),
        GatewayFamily(
            "weir_stream_lag_messages",
            "gauge",
            "Messages that wait for the stream, while a process runs the streams.",
            [(labels, progress.lag) for labels, _, progress in said if runner],
        ),
        GatewayFamily(
            "weir_stream_failures",
            "gauge",
            "How often the stream died since it last worked.",
            [(labels, progress.failures) for labels, _, progress in said],
        ),
        GatewayFamily(
            "weir_stream_rows_per_second",
            "gauge",
            "How fast the stream's last batch was.",
            [(labels, progress.rows_per_second) for labels, _, progress in said],
        ),
    ]

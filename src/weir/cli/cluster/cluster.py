"""`weir cluster ...`: run a cluster on one machine, and look after any cluster."""

import click

from weir.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "decommission": "weir.cli.cluster.admin:decommission",
        "drain": "weir.cli.cluster.admin:drain",
        "isolation": "weir.cli.cluster.isolation:isolation",
        "move": "weir.cli.cluster.admin:move",
        "status": "weir.cli.cluster.admin:status",
        "up": "weir.server.cluster_up_command:up",
    },
)
def cluster() -> None:
    """Run a cluster on this machine, and look after any cluster: brokers, bookies, and who serves what."""

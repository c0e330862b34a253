"""`weir cluster ...`: run a cluster on one machine, and look after any cluster."""

import click

from weir.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "up": "weir.server.cluster_up_command:up",
    },
)
def cluster() -> None:
    """Run a cluster on this machine, and look after any cluster: brokers, bookies, and who serves what."""

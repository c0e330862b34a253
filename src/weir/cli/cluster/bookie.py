"""`weir bookie ...`: run a storage node, and look into its files when it is stopped."""

import click

from weir.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "inspect": "weir.cli.cluster.bookie_tools:inspect_command",
        "rebuild-index": "weir.cli.cluster.bookie_tools:rebuild_command",
        "serve": "weir.server.bookie_command:serve",
        "verify": "weir.cli.cluster.bookie_tools:verify_command",
    },
)
def bookie() -> None:
    """Run a storage node, or look into its files while it is stopped."""

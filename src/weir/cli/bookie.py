"""`weir bookie ...`: run a storage node, and look into its files when it is stopped."""

import click

from weir.cli.lazy import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"serve": "weir.server.bookie_command:serve"},
)
def bookie() -> None:
    """Run a storage node, or look into its files while it is stopped."""

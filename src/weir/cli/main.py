"""The `weir` command: finds the subcommand, sets up logging, and turns errors into one clear line."""

import logging
import sys

import click

from weir.cli.lazy import LazyGroup
from weir.model.errors import ConfigError, WeirError

#: Exit codes: what was asked could not be done; it could not be understood.
FAILED, MISUSED = 1, 2


@click.group(
    cls=LazyGroup,
    lazy={
        "bookie": "weir.cli.bookie:bookie",
        "config": "weir.server.config_command:config",
        "consume": "weir.cli.consume:consume",
        "demo": "weir.server.demo:demo",
        "ledger": "weir.cli.ledger:ledger",
        "namespaces": "weir.cli.namespaces:namespaces",
        "peek": "weir.cli.peek:peek",
        "produce": "weir.cli.produce:produce",
        "schemas": "weir.cli.schemas:schemas",
        "subscriptions": "weir.cli.subscriptions:subscriptions",
        "tenants": "weir.cli.tenants:tenants",
        "token": "weir.cli.token:token",
        "topics": "weir.cli.topics:topics",
        "up": "weir.server.up_command:up",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-v", "--verbose", count=True, help="Say more; twice for debugging.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.version_option(package_name="weir")
def cli(verbose: int, quiet: bool) -> None:
    """One message and streaming platform over one replicated log."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def main(arguments: list[str] | None = None) -> None:
    """The program; exits with 0, 1 (it failed) or 2 (it was not understood)."""
    try:
        result = cli.main(arguments, prog_name="weir", standalone_mode=False)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except ConfigError as wrong:
        _complain(wrong)
        sys.exit(MISUSED)
    except WeirError as failure:
        _complain(failure)
        sys.exit(FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(result if isinstance(result, int) else 0)


def _complain(error: WeirError) -> None:
    click.echo(f"weir: {error}", err=True)


if __name__ == "__main__":
    main()

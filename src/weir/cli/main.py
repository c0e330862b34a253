"""The `weir` command: finds the subcommand, sets up logging, and turns errors into one clear line."""

import logging
import sys

import click

from weir import __version__
from weir.cli.command import Lazy, LazyGroup
from weir.model.errors import ConfigError, SparkJvmError, WeirError

#: Exit codes: the command failed; the command line was invalid.
FAILED, MISUSED = 1, 2

#: The help page: commands by purpose, what a newcomer needs first.
_SECTIONS = {
    "First steps": ("up", "produce", "consume", "topics", "doctor"),
    "Messages": ("peek", "messages", "delayed", "prepared", "replay", "trace", "schemas"),
    "Topics, subscriptions and tenants": ("subscriptions", "groups", "namespaces", "tenants", "top"),
    "Access": ("token", "tls"),
    "Data pipeline": ("sql", "streams", "functions", "connect", "lake", "pipeline"),
    "Cluster": ("cluster", "broker", "storage", "bookie", "ledger"),
    "Data folder": ("backup", "restore", "verify", "salvage"),
    "This command": ("config", "completion", "demo"),
}


@click.group(
    cls=LazyGroup,
    sections=_SECTIONS,
    lazy={
        "backup": Lazy("weir.cli.data_folder:backup", "Back up a data folder or a cluster, running or stopped."),
        "bookie": Lazy("weir.cli.bookie:bookie", "Run a storage node, or inspect its files."),
        "broker": Lazy("weir.server.commands.nodes:broker", "Run a broker of a cluster."),
        "cluster": Lazy("weir.cli.cluster:cluster", "Run a cluster on this machine, and manage any cluster."),
        "completion": Lazy("weir.cli.completion:completion", "Complete commands and names in a shell."),
        "config": Lazy("weir.server.commands.config:config", "Show and explain the settings of weir up."),
        "connect": Lazy(
            "weir.cli.connect:connect",
            "Move records between topics and PostgreSQL, files, S3, HTTP and other clusters.",
        ),
        "consume": Lazy("weir.cli.consume:consume", "Print the messages of a topic."),
        "demo": Lazy("weir.server.demo.tour:demo", "Show what Weir does, on this machine."),
        "doctor": Lazy("weir.cli.doctor:doctor", "Check what Weir and Spark need on this machine."),
        "functions": Lazy("weir.cli.functions:functions", "Deploy and run Python functions of messages."),
        "groups": Lazy("weir.cli.groups:groups", "List, describe and reset consumer groups and subscriptions."),
        "delayed": Lazy("weir.cli.delayed_messages:held", "List, cancel and release delayed messages."),
        "half": Lazy("weir.cli.prepared_messages:half", "The former name of prepared.", renamed="prepared"),
        "held": Lazy("weir.cli.delayed_messages:held", "The former name of delayed.", renamed="delayed"),
        "prepared": Lazy("weir.cli.prepared_messages:half", "Commit and roll back prepared messages."),
        "replay": Lazy("weir.cli.replay:replay", "Deliver the messages that a query selects again, each once."),
        "lake": Lazy("weir.cli.lake:lake", "Keep topics as Iceberg tables in a folder or an S3-compatible store."),
        "ledger": Lazy("weir.cli.ledger:ledger", "List, read, check and repair replicated ledgers."),
        "messages": Lazy("weir.cli.stored_messages:messages", "Find stored messages by their key."),
        "namespaces": Lazy(
            "weir.cli.namespaces:namespaces", "List, create and delete namespaces, and set their policies."
        ),
        "peek": Lazy(
            "weir.cli.stored_messages:peek", "Show the next messages of a subscription without consuming them."
        ),
        "pipeline": Lazy(
            "weir.cli.pipeline:pipeline",
            "Run Spark's declarative pipelines with topics as sources and sinks.",
        ),
        "produce": Lazy("weir.cli.produce:produce", "Send messages to a topic."),
        "restore": Lazy("weir.cli.data_folder:restore", "Restore a backup of a data folder or a cluster."),
        "salvage": Lazy(
            "weir.cli.data_folder:salvage_command",
            "Save the readable data of a damaged data folder into a new one.",
        ),
        "schemas": Lazy("weir.cli.schemas:schemas", "Show, upload, check and delete the schemas of a topic."),
        "sql": Lazy("weir.cli.sql:sql", "Query topics and define streams with SQL on Spark."),
        "storage": Lazy("weir.server.commands.nodes:storage", "Serve the storage of one folder to brokers."),
        "streams": Lazy("weir.cli.streams:streams", "Run and manage the streams that SQL defines."),
        "subscriptions": Lazy(
            "weir.cli.subscriptions:subscriptions",
            "List, create, move and delete the subscriptions of a topic.",
        ),
        "tenants": Lazy("weir.cli.namespaces:tenants", "List, create, change and delete tenants."),
        "tls": Lazy("weir.cli.tls:tls", "Create, show and renew certificates for TLS."),
        "token": Lazy("weir.cli.token:token", "Create keys and tokens, and decode tokens."),
        "top": Lazy("weir.cli.top:top", "Watch a broker: rates, backlogs, the busiest topics."),
        "topics": Lazy("weir.cli.topics:topics", "List, create, inspect and delete topics."),
        "trace": Lazy("weir.cli.trace:trace", "Trace the path of a message."),
        "up": Lazy("weir.server.commands.up:up", "Run a whole Weir on this machine."),
        "verify": Lazy(
            "weir.cli.data_folder:verify", "Check every checksum in a data folder, and list lost messages."
        ),
    },
    epilog="""
\b
To begin:
  weir up                          everything in one process, on this machine
  weir produce hello world         in another terminal
  weir consume hello
""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option("-v", "--verbose", count=True, help="More log output; twice for debugging.")
@click.option("-q", "--quiet", is_flag=True, help="Log only errors.")
@click.version_option(__version__)
def cli(verbose: int, quiet: bool) -> None:
    """One message and streaming platform over one replicated log."""
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; exits with 0, 1 (failure), 2 (invalid command line) or 75 (Spark needs a restart)."""
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
        sys.exit(failure.exit_code if isinstance(failure, SparkJvmError) else FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(result if isinstance(result, int) else 0)


def _complain(error: WeirError) -> None:
    click.echo(f"weir: {error}", err=True)


if __name__ == "__main__":
    main()

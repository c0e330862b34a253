"""`set-retry` and `set-priority` of topics and namespaces: what holds for all their shared subscriptions."""

from collections.abc import Callable
from typing import Any

import click

from weir.cli.examples import examples
from weir.cli.output import done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient
from weir.model.errors import ConfigError
from weir.model.priority import DEFAULT_PASSED, MOST_LEVELS


def add_message_policies(group: click.Group, kind: str, sample: str, path_of: Callable[..., str]) -> None:
    """Give a group of commands both. `kind`: what it is about; `path_of`: a path about one, and a word."""
    named = click.argument("name", metavar=kind.upper())

    @group.command(
        "set-retry",
        epilog=examples(
            f"weir {group.name} set-retry {sample} --schedule '1s 10s 1m' --max-deliveries 5",
            f"weir {group.name} set-retry {sample} --remove",
        ),
    )
    @named
    @click.option(
        "--schedule", metavar="WAITS", help="As in '1s 10s 1m', or growing as in 1s..10m or '1s..10m x3'."
    )
    @click.option("--max-deliveries", type=click.IntRange(min=0), help="Then it is a dead letter; 0: never.")
    @click.option("--dead-letter-topic", metavar="TOPIC", help="Instead of TOPIC-SUBSCRIPTION-DLQ.")
    @click.option("--remove", is_flag=True, help="Say nothing any more.")
    @remote_options
    def set_retry(
        *,
        name: str,
        schedule: str | None,
        max_deliveries: int | None,
        dead_letter_topic: str | None,
        remove: bool,
        remote: Remote,
        as_json: bool,
    ) -> None:
        """Say what becomes of messages that fail, for all shared subscriptions that say nothing of it."""
        said = {"schedule": schedule, "maxDeliveries": max_deliveries, "deadLetterTopic": dead_letter_topic}
        given = {word: value for word, value in said.items() if value is not None}
        if bool(given) == remove:
            raise ConfigError("say what shall hold", hint="give --schedule or --max-deliveries, or --remove alone")
        _set(remote, path_of(name, "retry"), None if remove else given)
        done(f"retry of {name} {'removed' if remove else 'set'}", as_json=as_json, **given)

    @group.command(
        "set-priority",
        epilog=examples(
            f"weir {group.name} set-priority {sample} --levels 9",
            f"weir {group.name} set-priority {sample} --levels 9 --passed 20",
            f"weir {group.name} set-priority {sample} --remove",
        ),
    )
    @named
    @click.option("--levels", type=click.IntRange(0, MOST_LEVELS), help="Above 0; 0: as a queue was declared.")
    @click.option(
        "--passed",
        type=click.IntRange(min=0),
        default=DEFAULT_PASSED,
        show_default=True,
        help="A lower level has its turn after so many of higher ones; 0: never.",
    )
    @click.option("--longest", type=click.IntRange(min=0), default=0, metavar="MS", help="Or after so long.")
    @click.option("--remove", is_flag=True, help="Say nothing any more.")
    @remote_options
    def set_priority(
        *, name: str, levels: int | None, passed: int, longest: int, remove: bool, remote: Remote, as_json: bool
    ) -> None:
        """Give messages levels of priority, the highest first, and bound how long the lower ones wait."""
        if (levels is None) != remove:
            raise ConfigError("say how many levels", hint="give --levels, or --remove alone")
        body = None if remove else {"levels": levels, "passed": passed, "longestMs": longest}
        _set(remote, path_of(name, "priority"), body)
        done(f"priority of {name} {'removed' if remove else 'set'}", as_json=as_json, **(body or {}))


def _set(remote: Remote, path: str, body: Any) -> None:
    async def work(admin: AdminClient) -> None:
        if body is None:
            await admin.delete(path)
        else:
            await admin.post(path, body)

    remote.admin(work)

"""Command-line values: sizes, spans, times and name=value pairs, and shell completion of names.

Completion queries the running server for topics, namespaces, subscriptions and streams.
"""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from weir.model.errors import ConfigError
from weir.model.moments import parse_moment_ms, parse_span_ms

__all__ = ["parse_moment_ms", "parse_pairs", "parse_size", "parse_span_ms", "short_topic", "show_moment"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_SCALES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_size(text: str) -> int:
    """Bytes: `512`, `64K`, `10MiB`, `1G`; -1 for no bound."""
    if text.strip() == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a size", hint="write bytes, or 64K, 10M, 1G; -1 for no bound")
    return round(float(found[1]) * _SCALES[found[2].lower()])


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """`name=value`, each."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{text!r} is not a pair", hint="write name=value")
        pairs[name] = value
    return pairs


def show_moment(wall_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    if not wall_ms:
        return ""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def short_topic(name: str) -> str:
    """A topic as people type it: bare in public/default, else tenant/namespace/topic; others in full."""
    rest = name.removeprefix("persistent://")
    return rest.removeprefix("public/default/")


#: The longest wait for the server after the tab key.
_PATIENCE_S = 1.0
_MOST = 500


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topics as they are written: bare in public/default, else tenant/namespace/topic."""
    *where, local = incomplete.rsplit("/", 1)
    namespace = where[0] if where else "public/default"
    prefix = f"{namespace}/" if where else ""
    if namespace.count("/") != 1 or not namespace.strip("/"):
        return complete_namespace(ctx, _param, incomplete) if namespace.count("/") == 0 and where else []

    async def ask(admin: Any) -> list[str]:
        from weir.client.admin import join

        path = join("persistent", *namespace.split("/"))
        query: dict[str, str | int | bool] = {"limit": _MOST}
        if local:  # the list is sorted: start just before the typed prefix
            before = local[:-1] + chr(max(33, ord(local[-1]) - 1))
            query["after"] = f"persistent://{namespace}/{before}"
        found: list[str] = await admin.get(path, query)
        whole = await admin.get(f"{path}/partitioned", query)
        return [*whole, *(name for name in found if "-partition-" not in name)]

    names = _asked(ctx, ask)
    locals_ = sorted({name.rsplit("/", 1)[-1] for name in names})
    return [CompletionItem(prefix + name) for name in locals_ if name.startswith(local)]


def complete_namespace(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """tenant/namespace."""

    async def ask(admin: Any) -> list[str]:
        from weir.client.admin import join

        tenant = incomplete.partition("/")[0]
        known: list[str] = [tenant] if "/" in incomplete else await admin.get("tenants")
        found: list[str] = []
        for name in known[:20]:
            if name.startswith(tenant):
                found += await admin.get(join("namespaces", name))
        return found

    return [CompletionItem(name) for name in _asked(ctx, ask) if name.startswith(incomplete)]


def complete_subscription(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Subscriptions of the topic that precedes them on the command line."""

    async def ask(admin: Any) -> list[str]:
        from weir.client.admin import topic_path
        from weir.model.topics import TopicName

        topic = ctx.params.get("topic")
        found: list[str] = await admin.get(topic_path(TopicName.parse(topic or ""), "subscriptions"))
        return found

    return [CompletionItem(name) for name in _asked(ctx, ask) if name.startswith(incomplete)]


def complete_stream(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Streams by their topics."""

    async def ask(admin: Any) -> list[str]:
        return [str(one["name"]).rsplit("/", 1)[-1] for one in await admin.own("GET", "streams")]

    return [CompletionItem(name) for name in _asked(ctx, ask) if name.startswith(incomplete)]


def _asked(ctx: click.Context, ask: Callable[[Any], Coroutine[Any, Any, list[str]]]) -> list[str]:
    """Return no names after an error, so that no error text appears on the line that the user is typing."""
    try:
        return _ask(ctx, ask)
    except Exception:
        return []


def _ask(ctx: click.Context, ask: Callable[[Any], Coroutine[Any, Any, list[str]]]) -> list[str]:
    from weir.cli.remote import VARIABLES, Remote, choose_token
    from weir.client.admin import AdminClient
    from weir.runtime.interfaces import Runtime
    from weir.runtime.real import run

    def given(name: str) -> str | None:
        """The value on the command line, else in the environment: click applies no defaults during completion."""
        return ctx.params.get(name) or os.environ.get(VARIABLES[name])

    token = choose_token(given("token"), given("token_file"))
    remote = Remote(given("url"), token, given("ca"), given("certificate"), given("cert_key"))

    async def main(runtime: Runtime) -> list[str]:
        async with asyncio.timeout(_PATIENCE_S):
            url = await remote.find_at_once(runtime)
            async with AdminClient(runtime, url, remote.settings()) as admin:
                return await ask(admin)

    return run(main)

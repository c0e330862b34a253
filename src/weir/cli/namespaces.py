"""`weir namespaces` and `weir tenants`: namespaces and their policies, and tenants.

Topic commands share the retention, retry and priority options defined here.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from weir.cli.arguments import complete_namespace, parse_size
from weir.cli.command import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, join, namespace_path
from weir.model.errors import ConfigError
from weir.model.moments import parse_span_ms
from weir.model.policies import DEFAULT_PASSED, MOST_LEVELS
from weir.model.topics import NamespaceName


def add_message_policies(group: click.Group, kind: str, sample: str, path_of: Callable[..., str]) -> None:
    """Add `set-retry` and `set-priority` to a command group. `kind`: its object; `path_of`: the policy path."""
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
    @click.option(
        "--max-deliveries", type=click.IntRange(min=0), help="Deliveries before a dead letter; 0: never."
    )
    @click.option("--dead-letter-topic", metavar="TOPIC", help="Instead of TOPIC-SUBSCRIPTION-DLQ.")
    @click.option("--remove", is_flag=True, help="Remove the policy.")
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
        """Set the retry and dead-letter policy of all shared subscriptions without their own."""
        said = {"schedule": schedule, "maxDeliveries": max_deliveries, "deadLetterTopic": dead_letter_topic}
        given = {word: value for word, value in said.items() if value is not None}
        if bool(given) == remove:
            raise ConfigError("no policy given", hint="give --schedule or --max-deliveries, or --remove alone")
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
    @click.option(
        "--levels", type=click.IntRange(0, MOST_LEVELS), help="Levels above 0; 0: as the queue declares."
    )
    @click.option(
        "--passed",
        type=click.IntRange(min=0),
        default=DEFAULT_PASSED,
        show_default=True,
        help="Deliver a lower level after this many higher ones; 0: never.",
    )
    @click.option(
        "--longest",
        type=click.IntRange(min=0),
        default=0,
        metavar="MS",
        help="Or after MS milliseconds; 0: never.",
    )
    @click.option("--remove", is_flag=True, help="Remove the policy.")
    @remote_options
    def set_priority(
        *, name: str, levels: int | None, passed: int, longest: int, remove: bool, remote: Remote, as_json: bool
    ) -> None:
        """Set priority levels of messages, the highest first, and bound the wait of lower ones."""
        if (levels is None) != remove:
            raise ConfigError("no number of levels given", hint="give --levels, or --remove alone")
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


_F = TypeVar("_F", bound=Callable[..., Any])


def retention_options(command: _F) -> _F:
    """`--time` and `--size`."""
    command = click.option(
        "--size",
        default="-1",
        show_default=True,
        metavar="SIZE",
        help="As in 500M or 10G; 0: none; -1: unlimited.",
    )(command)
    return click.option(
        "--time", "time_", required=True, metavar="SPAN", help="As in 12h or 7d; 0: none; -1: unlimited."
    )(command)


def retention_body(time_: str, size: str) -> dict[str, int]:
    """The body of the admin API: whole minutes and megabytes, rounded up."""
    minutes = -1 if time_ == "-1" else -(-parse_span_ms(time_) // 60_000)
    whole = parse_size(size)
    megabytes = -1 if whole == -1 else -(-whole // 1024**2)
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def retention_text(body: Mapping[str, int]) -> str:
    minutes, megabytes = body["retentionTimeInMinutes"], body["retentionSizeInMB"]
    if minutes == 0 or megabytes == 0:
        return "not at all"
    time_text = "for ever" if minutes < 0 else f"for {minutes} min"
    return time_text + ("" if megabytes < 0 else f", up to {megabytes} MB")


@click.group(
    epilog="""
\b
Examples:
  weir tenants list
  weir tenants create acme --admin alice --admin bob
  weir tenants delete acme
"""
)
def tenants() -> None:
    """List, create, change and delete tenants."""


@tenants.command("list", epilog=examples("weir tenants list", "weir tenants list -o csv"))
@remote_options
def list_tenants(remote: Remote, out: Output) -> None:
    """List all tenants."""

    async def work(admin: AdminClient) -> list[dict[str, object]]:
        names = await admin.get("tenants")
        return [{"name": name, **await admin.get(join("tenants", name))} for name in names]

    found = remote.admin(work)
    rows = [(item["name"], item.get("adminRoles"), item.get("allowedClusters")) for item in found]
    out.table((Column("tenant", cut="end"), Column("admin roles", cut="end"), "clusters"), rows, data=found)


@tenants.command(epilog=examples("weir tenants show acme"))
@click.argument("tenant")
@remote_options
def show(tenant: str, remote: Remote, out: Output) -> None:
    """Show one tenant and its namespaces."""

    async def work(admin: AdminClient) -> dict[str, object]:
        found = await admin.get(join("tenants", tenant))
        return {"name": tenant, **found, "namespaces": await admin.get(join("namespaces", tenant))}

    found = remote.admin(work)
    out.fields(found.items(), data=found)


_ADMIN = click.option(
    "--admin", "admins", multiple=True, metavar="ROLE", help="A role that may administer it; may be repeated."
)


@tenants.command("create", epilog=examples("weir tenants create acme --admin alice --admin bob"))
@click.argument("tenant")
@_ADMIN
@remote_options
def create_tenant(tenant: str, admins: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Create a tenant."""

    async def work(admin: AdminClient) -> None:
        body = {"adminRoles": list(admins), "allowedClusters": await admin.get("clusters")}
        await admin.put(join("tenants", tenant), body)

    remote.admin(work)
    done(f"tenant {tenant} created", as_json=as_json)


@tenants.command(epilog=examples("weir tenants update acme --admin alice"))
@click.argument("tenant")
@_ADMIN
@remote_options
def update(tenant: str, admins: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Change the administrators of a tenant."""

    async def work(admin: AdminClient) -> None:
        found = await admin.get(join("tenants", tenant))
        await admin.post(join("tenants", tenant), {**found, "adminRoles": list(admins)})

    remote.admin(work)
    done(f"tenant {tenant} changed", as_json=as_json)


@tenants.command(
    "delete",
    epilog=examples("weir tenants delete acme", "weir tenants delete acme --force   with all its namespaces"),
)
@click.argument("tenant")
@click.option("--force", is_flag=True, help="Also if it has namespaces and topics, which are deleted.")
@remote_options
def delete_tenant(tenant: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a tenant."""
    remote.admin(lambda admin: admin.delete(join("tenants", tenant), {"force": force}))
    done(f"tenant {tenant} deleted", as_json=as_json)


_ACTIONS = click.Choice(["produce", "consume", "functions", "sources", "sinks", "packages"])
_SWITCH = click.Choice(["on", "off"])


@click.group(
    epilog="""
\b
Examples:
  weir namespaces list public
  weir namespaces create acme/orders
  weir namespaces set-retention acme/orders --time 7d --size 10G
  weir namespaces set-backlog-quota acme/orders --size 1G --policy producer_exception
  weir namespaces grant acme/orders alice produce consume
"""
)
def namespaces() -> None:
    """List, create and delete namespaces, and set their policies."""


@namespaces.command("list", epilog=examples("weir namespaces list", "weir namespaces list acme -o csv"))
@click.argument("tenant", default="public")
@remote_options
def list_(tenant: str, remote: Remote, out: Output) -> None:
    """List the namespaces of a tenant."""
    out.names(remote.admin(lambda admin: admin.get(join("namespaces", tenant))), column="namespace")


@namespaces.command(epilog=examples("weir namespaces create acme/orders"))
@click.argument("namespace", shell_complete=complete_namespace)
@remote_options
def create(namespace: str, remote: Remote, as_json: bool) -> None:
    """Create a namespace."""
    _act(remote, "PUT", namespace, body={})
    done(f"namespace {namespace} created", as_json=as_json)


@namespaces.command(
    epilog=examples(
        "weir namespaces delete acme/orders", "weir namespaces delete acme/orders --force   with all its topics"
    )
)
@click.argument("namespace", shell_complete=complete_namespace)
@click.option("--force", is_flag=True, help="Also if it has topics, which are deleted.")
@remote_options
def delete(namespace: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a namespace."""
    path = namespace_path(NamespaceName.parse(namespace))
    remote.admin(lambda admin: admin.delete(path, {"force": force}))
    done(f"namespace {namespace} deleted", as_json=as_json)


@namespaces.command(
    epilog=examples(
        "weir namespaces policies acme/orders",
        "weir namespaces policies acme/orders -o wide   including policies that are not set",
    )
)
@click.argument("namespace", shell_complete=complete_namespace)
@remote_options
def policies(namespace: str, remote: Remote, out: Output) -> None:
    """Show the policies that are set; the others have their defaults."""
    found = remote.admin(lambda admin: admin.get(namespace_path(NamespaceName.parse(namespace))))
    shown = ((name, value) for name, value in found.items() if out.wide or value not in (None, {}, []))
    out.fields(shown, data=found)


@namespaces.command(
    "set-retention", epilog=examples("weir namespaces set-retention acme/orders --time 7d --size 10G")
)
@click.argument("namespace", shell_complete=complete_namespace)
@retention_options
@remote_options
def set_retention(namespace: str, time_: str, size: str, remote: Remote, as_json: bool) -> None:
    """Retain acknowledged messages up to a time and a size, whichever limit comes first."""
    body = retention_body(time_, size)
    _act(remote, "POST", namespace, "retention", body=body)
    done(f"{namespace} keeps acknowledged messages {retention_text(body)}", as_json=as_json, **body)


@namespaces.command(
    "set-message-ttl",
    epilog=examples(
        "weir namespaces set-message-ttl acme/orders 1h", "weir namespaces set-message-ttl acme/orders 0     never"
    ),
)
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("span")
@remote_options
def set_message_ttl(namespace: str, span: str, remote: Remote, as_json: bool) -> None:
    """Set the message TTL: unacknowledged messages expire after SPAN (as in 1h); 0: never."""
    seconds = parse_span_ms(span) // 1000
    _act(remote, "POST", namespace, "messageTTL", body=seconds)
    done(f"messages of {namespace} expire after {seconds} s", as_json=as_json, seconds=seconds)


@namespaces.command(
    "set-backlog-quota",
    epilog=examples("weir namespaces set-backlog-quota acme/orders --size 1G --policy producer_exception"),
)
@click.argument("namespace", shell_complete=complete_namespace)
@click.option("--size", default="-1", show_default=True, metavar="SIZE", help="As in 1G; -1: unlimited.")
@click.option("--time", "time_", default="-1", show_default=True, metavar="SPAN", help="As in 1d; -1: unlimited.")
@click.option(
    "--policy",
    type=click.Choice(["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]),
    default="producer_request_hold",
    show_default=True,
)
@remote_options
def set_backlog_quota(
    *, namespace: str, size: str, time_: str, policy: str, remote: Remote, as_json: bool
) -> None:
    """Limit the backlog of a topic, and choose the action beyond the limit."""
    limit = parse_size(size)
    seconds = -1 if time_ == "-1" else parse_span_ms(time_) // 1000

    async def work(admin: AdminClient) -> None:
        path = namespace_path(NamespaceName.parse(namespace), "backlogQuota")
        for kind, bound in (("destination_storage", limit), ("message_age", seconds)):
            if bound != -1:
                body = {"limitSize": limit, "limitTime": seconds, "policy": policy}
                await admin.post(path, body, {"backlogQuotaType": kind})

    remote.admin(work)
    done(f"backlog quota of {namespace} set", as_json=as_json, limitSize=limit, limitTime=seconds, policy=policy)


@namespaces.command("set-deduplication", epilog=examples("weir namespaces set-deduplication acme/orders on"))
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("switch", type=_SWITCH)
@remote_options
def set_deduplication(namespace: str, switch: str, remote: Remote, as_json: bool) -> None:
    """Switch deduplication of producers' retries on or off."""
    _act(remote, "POST", namespace, "deduplication", body=switch == "on")
    done(f"deduplication of {namespace} is {switch}", as_json=as_json)


@namespaces.command(
    "set-auto-topic-creation",
    epilog=examples(
        "weir namespaces set-auto-topic-creation acme/orders on -p 4",
        "weir namespaces set-auto-topic-creation acme/orders off",
    ),
)
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("switch", type=_SWITCH)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=0),
    default=0,
    help="Partitions of a new topic; 0: not partitioned.",
)
@remote_options
def set_auto_topic_creation(namespace: str, switch: str, partitions: int, remote: Remote, as_json: bool) -> None:
    """Switch the automatic creation of topics on or off."""
    body: dict[str, Any] = {
        "allowAutoTopicCreation": switch == "on",
        "topicType": "partitioned" if partitions else "non-partitioned",
    }
    if partitions:
        body["defaultNumPartitions"] = partitions
    _act(remote, "POST", namespace, "autoTopicCreation", body=body)
    done(f"automatic creation of topics in {namespace} is {switch}", as_json=as_json)


@namespaces.command(epilog=examples("weir namespaces permissions acme/orders"))
@click.argument("namespace", shell_complete=complete_namespace)
@remote_options
def permissions(namespace: str, remote: Remote, out: Output) -> None:
    """Show the grants of each role."""
    path = namespace_path(NamespaceName.parse(namespace), "permissions")
    found = remote.admin(lambda admin: admin.get(path))
    out.table((Column("role", cut="end"), "may"), list(found.items()), data=found)


@namespaces.command(epilog=examples("weir namespaces grant acme/orders alice produce consume"))
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("role")
@click.argument("actions", nargs=-1, required=True, type=_ACTIONS)
@remote_options
def grant(namespace: str, role: str, actions: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Allow ROLE to produce to or consume from all topics of the namespace."""
    _act(remote, "POST", namespace, "permissions", role, body=list(actions))
    done(f"{role} may {' and '.join(actions)} in {namespace}", as_json=as_json)


@namespaces.command(epilog=examples("weir namespaces revoke acme/orders alice"))
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("role")
@remote_options
def revoke(namespace: str, role: str, remote: Remote, as_json: bool) -> None:
    """Revoke all grants of ROLE on the namespace."""
    _act(remote, "DELETE", namespace, "permissions", role)
    done(f"{role} has no grant on {namespace}", as_json=as_json)


def _act(remote: Remote, method: str, namespace: str, *rest: str, body: Any = None) -> None:
    path = namespace_path(NamespaceName.parse(namespace), *rest)
    remote.admin(lambda admin: admin.call(method, path, body=body))


add_message_policies(
    namespaces, "namespace", "acme/orders", lambda name, word: namespace_path(NamespaceName.parse(name), word)
)

"""`weir namespaces`: groups of topics with common policies."""

from typing import Any

import click

from weir.cli.completing import complete_namespace
from weir.cli.examples import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.cli.topics.message_policies import add_message_policies
from weir.cli.topics.retention import retention_body, retention_options, retention_text
from weir.cli.values import parse_size, parse_span_ms
from weir.client.admin import AdminClient, join, namespace_path
from weir.model.topics import NamespaceName

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
        "weir namespaces policies acme/orders -o wide   also what is not set",
    )
)
@click.argument("namespace", shell_complete=complete_namespace)
@remote_options
def policies(namespace: str, remote: Remote, out: Output) -> None:
    """Show the policies that were set; what is not shown is the default."""
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
    """Keep acknowledged messages for a time and up to a size, whichever ends first."""
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
    """Let unacknowledged messages expire after SPAN (as in 1h); 0: never."""
    seconds = parse_span_ms(span) // 1000
    _act(remote, "POST", namespace, "messageTTL", body=seconds)
    done(f"messages of {namespace} expire after {seconds} s", as_json=as_json, seconds=seconds)


@namespaces.command(
    "set-backlog-quota",
    epilog=examples("weir namespaces set-backlog-quota acme/orders --size 1G --policy producer_exception"),
)
@click.argument("namespace", shell_complete=complete_namespace)
@click.option("--size", default="-1", show_default=True, metavar="SIZE", help="As in 1G; -1: any.")
@click.option("--time", "time_", default="-1", show_default=True, metavar="SPAN", help="As in 1d; -1: any.")
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
    """Bound what may wait in a topic, and say what happens beyond that."""
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
    """Store once what a producer sends twice."""
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
    "-p", "--partitions", type=click.IntRange(min=0), default=0, help="With so many; 0: not partitioned."
)
@remote_options
def set_auto_topic_creation(namespace: str, switch: str, partitions: int, remote: Remote, as_json: bool) -> None:
    """Whether topics come to be when a client names them."""
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
    """Show which roles may do what."""
    path = namespace_path(NamespaceName.parse(namespace), "permissions")
    found = remote.admin(lambda admin: admin.get(path))
    out.table((Column("role", cut="end"), "may"), list(found.items()), data=found)


@namespaces.command(epilog=examples("weir namespaces grant acme/orders alice produce consume"))
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("role")
@click.argument("actions", nargs=-1, required=True, type=_ACTIONS)
@remote_options
def grant(namespace: str, role: str, actions: tuple[str, ...], remote: Remote, as_json: bool) -> None:
    """Let ROLE produce to or consume from all topics of the namespace."""
    _act(remote, "POST", namespace, "permissions", role, body=list(actions))
    done(f"{role} may {' and '.join(actions)} in {namespace}", as_json=as_json)


@namespaces.command(epilog=examples("weir namespaces revoke acme/orders alice"))
@click.argument("namespace", shell_complete=complete_namespace)
@click.argument("role")
@remote_options
def revoke(namespace: str, role: str, remote: Remote, as_json: bool) -> None:
    """Take everything back that ROLE was granted on the namespace."""
    _act(remote, "DELETE", namespace, "permissions", role)
    done(f"{role} has no grant on {namespace}", as_json=as_json)


def _act(remote: Remote, method: str, namespace: str, *rest: str, body: Any = None) -> None:
    path = namespace_path(NamespaceName.parse(namespace), *rest)
    remote.admin(lambda admin: admin.call(method, path, body=body))


add_message_policies(
    namespaces, "namespace", "acme/orders", lambda name, word: namespace_path(NamespaceName.parse(name), word)
)

"""`weir cluster`: run a cluster on one machine; show, drain, move and decommission nodes; set isolation policies.

The commands work through any broker of the cluster.
"""

from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weir.cli.command import LazyGroup, examples
from weir.cli.output import Column, Output, done, print_json
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, join
from weir.model.cluster import BundleName
from weir.model.errors import NotAllowedError
from weir.model.registry import STANDALONE
from weir.runtime.real import real_runtime

_LOOK_S = 0.3


@click.command(
    epilog="""
\b
Examples:
  weir cluster status
  weir cluster status --url http://broker-2:8080 --json
"""
)
@remote_options
def status(remote: Remote, out: Output) -> None:
    """Show brokers and their load, bundles, bookies, under-replicated ledgers and the leader."""

    async def work(admin: AdminClient) -> dict[str, Any]:
        found: dict[str, Any] = await admin.own("GET", "cluster")
        return found

    found = remote.admin(work)
    if out.json:
        print_json(found)
        return
    out.table(
        (
            Column("broker", cut="end"),
            "number",
            Column("rack", cut="end"),
            "bundles",
            "cpu",
            "memory",
            "messages/s",
            "MB/s",
            "notes",
        ),
        [_broker_row(each, found["leader"]) for each in found["brokers"]],
        title="Brokers",
    )
    out.gap()
    rows = [(each["name"], each["owner"], each["epoch"]) for each in found["bundles"]]
    out.table((Column("bundle", cut="start"), Column("broker", cut="end"), "epoch"), rows, title="Bundles")
    out.gap()
    out.table(
        (Column("bookie", cut="end"), "address", Column("rack", cut="end"), "state", "ledgers"),
        [
            (each["name"], each["address"], each["rack"], each["state"], each["ledgers"])
            for each in found["bookies"]
        ],
        title="Bookies",
    )
    out.gap()
    waiting = [f"{name} (not {', '.join(who)})" for name, who in found["heldBack"].items()]
    out.fields(
        [
            ("under-replicated ledgers", found["underReplicatedLedgers"]),
            ("leader", found["leader"] or "none"),
            ("features", ", ".join(found["features"])),
            *([("not used yet", ", ".join(waiting))] if waiting else []),
        ]
    )


def _broker_row(broker: dict[str, Any], leader: str) -> tuple[object, ...]:
    load = broker["load"]
    notes = [
        word for word, holds in (("leader", broker["name"] == leader), ("draining", broker["draining"])) if holds
    ]
    used: tuple[object, ...] = ("", "", "", "")
    if load is not None:
        messages, size = load["messagesIn"] + load["messagesOut"], load["bytesIn"] + load["bytesOut"]
        used = (f"{load['cpu']:.0%}", f"{load['memory']:.0%}", f"{messages:.0f}", f"{size / 1e6:.1f}")
    return (broker["name"], broker["nodeId"], broker["rack"], broker["bundles"], *used, ", ".join(notes))


@click.command(
    epilog="""
\b
Examples:
  weir cluster drain broker-2           then stop or upgrade it; a restart ends the drain
  weir cluster drain broker-2 --resume
"""
)
@click.argument("broker")
@click.option("--resume", is_flag=True, help="Let the broker own bundles again.")
@remote_options
def drain(broker: str, resume: bool, remote: Remote, as_json: bool) -> None:
    """Hand all bundles of BROKER over to other brokers, and assign it no new ones."""
    verb = "resume" if resume else "drain"
    remote.admin(lambda admin: admin.own("PUT", join("cluster", "brokers", broker, verb)))
    done(
        f"{broker} accepts bundles again" if resume else f"{broker} owns no more bundles",
        as_json=as_json,
        broker=broker,
    )


@click.command(
    epilog="""
\b
Example:
  weir cluster move public/default/0x00000000_0x40000000 broker-3
"""
)
@click.argument("bundle")
@click.argument("broker")
@remote_options
def move(bundle: str, broker: str, remote: Remote, as_json: bool) -> None:
    """Hand BUNDLE over to BROKER. weir cluster status shows bundle names."""
    name = BundleName.parse(bundle)
    tenant, namespace, hashes = str(name).split("/")
    path = join("namespaces", tenant, namespace, hashes, "transfer")
    remote.admin(lambda admin: admin.put(path, query={"destinationBroker": broker}))
    done(f"{broker} has {bundle}", as_json=as_json, bundle=bundle, broker=broker)


@click.command(
    epilog="""
\b
Examples:
  weir cluster decommission bookie-3            exits when the bookie can be stopped
  weir cluster decommission bookie-3 --cancel   let it accept ledgers again

An interrupted run resumes where it stopped: give the command again.
"""
)
@click.argument("bookie")
@click.option("--cancel", is_flag=True, help="Cancel: let the bookie accept ledgers again.")
@remote_options
def decommission(bookie: str, cancel: bool, remote: Remote, as_json: bool) -> None:
    """Copy all ledgers off BOOKIE and place no new ones on it."""
    path = join("cluster", "bookies", bookie, "decommission")
    if cancel:
        remote.admin(lambda admin: admin.own("DELETE", path))
        done(f"{bookie} accepts ledgers again", as_json=as_json, bookie=bookie)
        return
    moved = remote.admin(lambda admin: _empty(admin, bookie, path))
    done(f"{bookie} holds no ledgers; stop it now", as_json=as_json, bookie=bookie, ledgers=moved)


async def _empty(admin: AdminClient, bookie: str, path: str) -> int:
    """Wait until the bookie holds no ledgers; return how many it held.

    NotAllowedError if the remaining ledgers fit on no other bookies.
    """
    begun = await admin.own("PUT", path)
    total: int = begun["left"]
    clock = real_runtime().clock
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("ledgers"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(bookie, total=total)
        problems = 0
        while True:
            found = await admin.own("PUT", path)
            total = max(total, found["left"])
            bar.update(task, total=total, completed=total - found["left"])
            if not found["left"]:
                return total
            problems = problems + 1 if found["problem"] else 0
            if problems > _TRIES:
                raise NotAllowedError(
                    f"{found['left']} ledgers cannot be moved off {bookie}: {found['problem']}",
                    hint="start more bookies and repeat the command, or give --cancel",
                )
            await clock.sleep(_LOOK_S)


#: Consecutive failures to move a ledger before the command gives up.
_TRIES = 30

_POLICIES = join("clusters", STANDALONE, "namespaceIsolationPolicies")
_BROKERS = f"{_POLICIES}/brokers"


@click.group(
    epilog="""
\b
Examples:
  weir cluster isolation set fast --namespaces 'acme/.*' --primary 'ssd-.*' --secondary 'hdd-.*'
  weir cluster isolation list
  weir cluster isolation brokers
  weir cluster isolation delete fast

Namespaces and brokers are regular expressions that match whole names; brokers also match by their host names.
"""
)
def isolation() -> None:
    """Reserve brokers for some namespaces."""


@isolation.command("list", epilog=examples("weir cluster isolation list", "weir cluster isolation list -o json"))
@remote_options
def list_(remote: Remote, out: Output) -> None:
    """List the policies."""
    found: dict[str, Any] = remote.admin(lambda admin: admin.get(_POLICIES))
    parts = [Column(name, cut="end") for name in ("namespaces", "primary", "secondary")]
    rows = [
        (name, policy["namespaces"], policy["primary"], policy["secondary"], _min_limit(policy))
        for name, policy in found.items()
    ]
    out.table(("policy", *parts, "at least"), rows, data=found)


@isolation.command(epilog=examples("weir cluster isolation show fast"))
@click.argument("policy")
@remote_options
def show(policy: str, remote: Remote, out: Output) -> None:
    """Show one policy."""
    found: dict[str, Any] = remote.admin(lambda admin: admin.get(f"{_POLICIES}/{join(policy)}"))
    parts = ("namespaces", "primary", "secondary")
    out.fields([*((part, found[part]) for part in parts), ("at least", _min_limit(found))], data=found)


@isolation.command(
    "set",
    epilog=examples(
        "weir cluster isolation set fast --namespaces 'acme/.*' --primary 'ssd-.*' --secondary 'hdd-.*'"
    ),
)
@click.argument("policy")
@click.option("--namespaces", multiple=True, required=True, help="tenant/namespace; may be repeated.")
@click.option(
    "--primary", multiple=True, required=True, help="Brokers reserved for the namespaces; may be repeated."
)
@click.option("--secondary", multiple=True, help="Brokers to add when primary ones are too few.")
@click.option(
    "--min-limit",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Fewest primary brokers that suffice.",
)
@remote_options
def set_(
    policy: str,
    *,
    namespaces: tuple[str, ...],
    primary: tuple[str, ...],
    secondary: tuple[str, ...],
    min_limit: int,
    remote: Remote,
    as_json: bool,
) -> None:
    """Reserve the primary brokers for these namespaces. Brokers hand other bundles over step by step."""
    body = {
        "namespaces": list(namespaces),
        "primary": list(primary),
        "secondary": list(secondary),
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": str(min_limit), "usage_threshold": "100"},
        },
    }
    remote.admin(lambda admin: admin.post(f"{_POLICIES}/{join(policy)}", body))
    done(f"isolation policy {policy} is set", as_json=as_json, policy=policy)


@isolation.command(epilog=examples("weir cluster isolation delete fast"))
@click.argument("policy")
@remote_options
def delete(policy: str, remote: Remote, as_json: bool) -> None:
    """Delete a policy: its brokers serve all namespaces again."""
    remote.admin(lambda admin: admin.delete(f"{_POLICIES}/{join(policy)}"))
    done(f"isolation policy {policy} is deleted", as_json=as_json, policy=policy)


@isolation.command(epilog=examples("weir cluster isolation brokers"))
@remote_options
def brokers(remote: Remote, out: Output) -> None:
    """List the brokers and the namespaces that they are reserved for."""

    async def work(admin: AdminClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await admin.get(_BROKERS)
        return found

    found = remote.admin(work)
    rows = [(each["brokerName"], each["policyName"] or "", _role(each), each["namespaceRegex"]) for each in found]
    out.table(("broker", "policy", "role", Column("namespaces", cut="end")), rows, data=found)


def _min_limit(policy: dict[str, Any]) -> str:
    limit: str = policy["auto_failover_policy"]["parameters"]["min_limit"]
    return limit


def _role(broker: dict[str, Any]) -> str:
    if broker["policyName"] is None:
        return "for all"
    return "primary" if broker["primary"] else "secondary"


@click.group(
    cls=LazyGroup,
    lazy={
        "decommission": "weir.cli.cluster:decommission",
        "drain": "weir.cli.cluster:drain",
        "isolation": "weir.cli.cluster:isolation",
        "move": "weir.cli.cluster:move",
        "status": "weir.cli.cluster:status",
        "up": "weir.server.commands.cluster_up:up",
    },
)
def cluster() -> None:
    """Run a cluster on this machine, and manage any cluster: brokers, bookies, bundles and isolation."""

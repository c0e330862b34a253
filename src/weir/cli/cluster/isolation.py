"""`weir cluster isolation ...`: which brokers are kept for which namespaces."""

from typing import Any

import click

from weir.cli.examples import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, join
from weir.model.registry import STANDALONE

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

Namespaces and brokers are regular expressions of whole names; a broker's may also be that of its host.
"""
)
def isolation() -> None:
    """Keep brokers for some namespaces."""


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
@click.option("--primary", multiple=True, required=True, help="Brokers that are kept for these; may be repeated.")
@click.option("--secondary", multiple=True, help="Brokers that serve them as well when primary ones are too few.")
@click.option("--min-limit", type=click.IntRange(0), default=1, show_default=True, help="Fewer are too few.")
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
    """Keep the primary brokers for these namespaces. What is elsewhere is handed over bit by bit."""
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
    """Delete a policy: its brokers are for everybody again."""
    remote.admin(lambda admin: admin.delete(f"{_POLICIES}/{join(policy)}"))
    done(f"isolation policy {policy} is deleted", as_json=as_json, policy=policy)


@isolation.command(epilog=examples("weir cluster isolation brokers"))
@remote_options
def brokers(remote: Remote, out: Output) -> None:
    """List the brokers, and what they are kept for."""

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

"""`weir tenants`: who shares the cluster."""

import click

from weir.cli.examples import examples
from weir.cli.output import Column, Output, done
from weir.cli.remote import Remote, remote_options
from weir.client.admin import AdminClient, join


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
def list_(remote: Remote, out: Output) -> None:
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
    "--admin", "admins", multiple=True, metavar="ROLE", help="May administer it; may be repeated."
)


@tenants.command(epilog=examples("weir tenants create acme --admin alice --admin bob"))
@click.argument("tenant")
@_ADMIN
@remote_options
def create(tenant: str, admins: tuple[str, ...], remote: Remote, as_json: bool) -> None:
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
    """Give a tenant other administrators."""

    async def work(admin: AdminClient) -> None:
        found = await admin.get(join("tenants", tenant))
        await admin.post(join("tenants", tenant), {**found, "adminRoles": list(admins)})

    remote.admin(work)
    done(f"tenant {tenant} changed", as_json=as_json)


@tenants.command(
    epilog=examples("weir tenants delete acme", "weir tenants delete acme --force   with all its namespaces")
)
@click.argument("tenant")
@click.option("--force", is_flag=True, help="Also if it has namespaces and topics, which are deleted.")
@remote_options
def delete(tenant: str, force: bool, remote: Remote, as_json: bool) -> None:
    """Delete a tenant."""
    remote.admin(lambda admin: admin.delete(join("tenants", tenant), {"force": force}))
    done(f"tenant {tenant} deleted", as_json=as_json)

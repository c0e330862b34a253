"""Names that belong to a tenant: of consumer groups, transactional ids and sinks (`docs/adr/0023-whose-names.md`).

A client says `billing`. Kept is `billing` for whoever is of no tenant or of `public`, so that what was kept before
is found; for others the tenant is part of what is kept, behind a mark that no name from outside has. Those who are
not of the tenant, but may know of it, see `acme/billing`.
"""

from weir.model.errors import InvalidNameError

#: Begins what is kept for a tenant. Tenants' names hold no slash.
_MARK = "\x1f"
#: Transactional ids of a sink's writers are `weir-sink/<the sink's name>/<anything>`: so their coordinator is the
#: sink's, and one write of it decides all of them.
SINK_PREFIX = "weir-sink"


def check_unmarked(name: str) -> None:
    """InvalidNameError for a name from outside that looks like one that is kept for a tenant."""
    if _MARK in name:
        raise InvalidNameError(f"{name[:80]!r} has a control character in it", hint="use printable characters")


def kept_name(tenant: str, name: str) -> str:
    """What a coordinator calls a tenant's name; without a tenant, the name itself."""
    return f"{_MARK}{tenant}/{name}" if tenant else name


def tenant_of_name(kept: str) -> str:
    """The tenant that a kept name belongs to; nothing if it is nobody's in particular, or of `public`."""
    return kept[1:].partition("/")[0] if kept.startswith(_MARK) else ""


def plain_name(kept: str) -> str:
    """The name as its tenant's clients say it."""
    return kept.partition("/")[2] if kept.startswith(_MARK) else kept


def full_name(kept: str) -> str:
    """The name as others may see it."""
    return kept.removeprefix(_MARK)

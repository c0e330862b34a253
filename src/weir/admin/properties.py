"""Properties of namespaces, topics and subscriptions: bounded, as they live in the metadata."""

from collections.abc import Mapping

from weir.admin.routing import RefusedError

_MAX_COUNT = 1_000
_MAX_CHARS = 64 * 1024


def bounded(properties: Mapping[str, str] | None) -> dict[str, str]:
    """The same; 412 if they are too many or too long."""
    found = dict(properties or {})
    if len(found) > _MAX_COUNT:
        raise RefusedError(412, f"there can be {_MAX_COUNT} properties at the most, not {len(found)}")
    if sum(len(name) + len(value) for name, value in found.items()) > _MAX_CHARS:
        raise RefusedError(412, f"properties have {_MAX_CHARS} characters at the most, all together")
    return found

"""Properties of namespaces, topics and subscriptions: bounded, as they live in the metadata.

Those of namespaces and topics whose names begin with `weir.` are the broker's own (how a queue was declared, and
policies of queues): they are neither shown nor changed here.
"""

from collections.abc import Mapping

from weir.admin.routing import RefusedError

_MAX_COUNT = 1_000
_MAX_CHARS = 64 * 1024
_OWN = "weir."


def bounded(properties: Mapping[str, str] | None) -> dict[str, str]:
    """The same; 412 if they are too many or too long."""
    found = dict(properties or {})
    if len(found) > _MAX_COUNT:
        raise RefusedError(412, f"there can be {_MAX_COUNT} properties at the most, not {len(found)}")
    if sum(len(name) + len(value) for name, value in found.items()) > _MAX_CHARS:
        raise RefusedError(412, f"properties have {_MAX_CHARS} characters at the most, all together")
    return found


def users_own(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that are not the broker's."""
    return {name: value for name, value in properties.items() if not name.startswith(_OWN)}


def brokers_own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(_OWN)}


def given(properties: Mapping[str, str] | None) -> dict[str, str]:
    """What a user says; 412 if it is too much, or if one is the broker's."""
    own = next(iter(brokers_own(properties or {})), None)
    if own is not None:
        raise RefusedError(412, f"property {own[:80]!r} is the broker's own", hint=f"use a name without {_OWN!r}")
    return bounded(properties)

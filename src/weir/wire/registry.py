"""Tenants, namespaces, topics, grants, users, schemas and brokers as values in the metadata store.

A field that a newer Weir added is left out when read, so brokers of two releases can run side by side; policies
that nobody set are not written at all.

Bundles' boundaries and claims as values in the metadata store.

Overviews of topics as values in the metadata store.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from enum import Enum
from typing import Any

from weir.model.cluster import Boundaries, BundleClaim
from weir.model.errors import InvalidNameError, WireError
from weir.model.lake import LakeCatalog
from weir.model.policies import (
    AutoTopicCreation,
    BacklogAction,
    BacklogQuota,
    Cleanup,
    Isolation,
    IsolationPolicy,
    LogCompaction,
    Policies,
    Priority,
    Rate,
    Retention,
    Roll,
    SchemaCompatibility,
)
from weir.model.registry import (
    Action,
    BrokerInfo,
    Cluster,
    Grants,
    KeyPatterns,
    NamePatterns,
    Namespace,
    PasswordHashing,
    StoredSchema,
    Tenant,
    TopicRecord,
    User,
)
from weir.model.retry import Backoff, FixedDelays, RetryPolicy, parse_schedule
from weir.model.topics import NamespaceName, SubscriptionOverview, TopicName, TopicOverview
from weir.wire.metadata import (
    decode,
    dump_fields,
    each,
    flag,
    load_fields,
    number,
    optional_number,
    optional_text,
    text,
)


def _texts(items: Any) -> tuple[str, ...]:
    return tuple(text(item) for item in each(items))


def _pairs(items: Any) -> dict[str, str]:
    return {text(key): text(value) for key, value in items.items()}


# --- clusters, tenants, namespaces, topics --------------------------------------------------------------------


def encode_cluster(cluster: Cluster) -> bytes:
    return dump_fields(asdict(cluster))


def decode_cluster(data: bytes) -> Cluster:
    return decode(
        data,
        "a cluster",
        lambda f: Cluster(
            text(f["name"]),
            optional_text(f["service_url"]),
            optional_text(f["broker_service_url"]),
            {text(name): _isolation_policy(policy) for name, policy in f.get("isolation", {}).items()},
        ),
    )


def encode_tenant(tenant: Tenant) -> bytes:
    return dump_fields(
        {
            "name": tenant.name,
            "admin_roles": list(tenant.admin_roles),
            "allowed_clusters": list(tenant.allowed_clusters),
            "deleting": tenant.deleting,
        }
    )


def decode_tenant(data: bytes) -> Tenant:
    return decode(
        data,
        "a tenant",
        lambda f: Tenant(
            text(f["name"]), _texts(f["admin_roles"]), _texts(f["allowed_clusters"]), flag(f["deleting"])
        ),
    )


def encode_namespace(namespace: Namespace) -> bytes:
    return dump_fields(
        {
            "name": str(namespace.name),
            "policies": policies_to_fields(namespace.policies),
            "properties": dict(namespace.properties),
            "deleting": namespace.deleting,
        }
    )


def decode_namespace(data: bytes) -> Namespace:
    return decode(
        data,
        "a namespace",
        lambda f: Namespace(
            NamespaceName.parse(text(f["name"])),
            policies_from_fields(f["policies"]),
            _pairs(f["properties"]),
            flag(f["deleting"]),
        ),
    )


def encode_topic(topic: TopicRecord) -> bytes:
    return dump_fields(
        {
            "name": str(topic.name),
            "partitions": topic.partitions,
            "policies": policies_to_fields(topic.policies),
            "properties": dict(topic.properties),
            "created_ms": topic.created_ms,
            **({"deleting": True} if topic.deleting else {}),
            **({"ordered_id": True} if topic.ordered_id else {}),
        }
    )


def decode_topic(data: bytes) -> TopicRecord:
    return decode(
        data,
        "a topic",
        lambda f: TopicRecord(
            TopicName.parse(text(f["name"])),
            number(f["partitions"]),
            policies_from_fields(f["policies"]),
            _pairs(f["properties"]),
            number(f["created_ms"]),
            flag(f.get("deleting", False)),
            flag(f.get("ordered_id", False)),
        ),
    )


def topic_partitions(data: bytes) -> int:
    """How many partitions an encoded topic has, without decoding the rest of it: for lists of many."""
    at = data.find(_PARTITIONS)  # in no text of the record, where its quotes would be escaped
    end = data.find(b",", at)
    digits = data[at + len(_PARTITIONS) : end] if 0 <= at < end else b""
    return int(digits) if digits.isdigit() else decode_topic(data).partitions


_PARTITIONS = b'"partitions":'

# --- policies -------------------------------------------------------------------------------------------------


def policies_to_fields(policies: Policies) -> dict[str, Any]:
    """Only what is set."""
    return {name: _plain(value) for name in _POLICY_NAMES if (value := getattr(policies, name)) is not None}


_POLICY_NAMES = tuple(field.name for field in fields(Policies))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, FixedDelays | Backoff):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return {
        field.name: _plain(part) for field in fields(value) if (part := getattr(value, field.name)) is not None
    }


def _retention(f: Any) -> Retention:
    return Retention(
        number(f["minutes"]),
        number(f["megabytes"]),
        optional_number(f.get("exact_ms")),
        optional_number(f.get("exact_bytes")),
    )


def _log_compaction(f: Any) -> LogCompaction:
    return LogCompaction(
        Cleanup(f["cleanup"]),
        number(f["tombstone_ms"]),
        number(f["min_lag_ms"]),
        number(f["max_lag_ms"]),
        number(f["dirty_percent"]),
    )


def _roll(f: Any) -> Roll:
    return Roll(number(f["bytes"]), number(f["ms"]))


def _isolation(f: Any) -> Isolation:
    return Isolation(
        _texts(f["brokers"]), _texts(f["fallback"]), number(f.get("least", 1)), _texts(f.get("excluded", []))
    )


def _isolation_policy(f: Any) -> IsolationPolicy:
    return IsolationPolicy(
        _texts(f["namespaces"]),
        _texts(f["primary"]),
        _texts(f["secondary"]),
        number(f["min_limit"]),
        number(f["usage_threshold"]),
    )


def _retry(f: Any) -> RetryPolicy:
    schedule = optional_text(f.get("schedule"))
    return RetryPolicy(
        None if schedule is None else parse_schedule(schedule),
        optional_number(f.get("max_deliveries")),
        optional_text(f.get("dead_letter_topic")),
    )


def _priority(f: Any) -> Priority:
    return Priority(number(f["levels"]), number(f["passed"]), number(f["longest_ms"]))


def _backlog_quota(f: Any) -> BacklogQuota:
    return BacklogQuota(number(f["bytes"]), number(f["seconds"]), BacklogAction(f["action"]))


def _rate(f: Any) -> Rate:
    return Rate(number(f["messages"]), number(f["bytes"]))


def _auto_topic_creation(f: Any) -> AutoTopicCreation:
    return AutoTopicCreation(flag(f["allowed"]), number(f["partitions"]))


#: How each policy is read; those not named here are whole numbers.
_POLICIES: Mapping[str, Callable[[Any], Any]] = {
    **{field.name: number for field in fields(Policies)},
    "retention": _retention,
    "backlog_quota": _backlog_quota,
    "publish_rate": _rate,
    "dispatch_rate": _rate,
    "subscription_dispatch_rate": _rate,
    "deduplication": flag,
    "delayed_delivery": flag,
    "schema_compatibility": SchemaCompatibility,
    "schema_required": flag,
    "allow_schema_auto_update": flag,
    "auto_topic_creation": _auto_topic_creation,
    "auto_subscription_creation": flag,
    "log_compaction": _log_compaction,
    "roll": _roll,
    "isolation": _isolation,
    "retry": _retry,
    "priority": _priority,
    "key_index": flag,
}


def policies_from_fields(found: Mapping[str, Any]) -> Policies:
    """The policies that this release knows among those that were written."""
    return Policies(**{name: _POLICIES[name](value) for name, value in found.items() if name in _POLICIES})


# --- grants ---------------------------------------------------------------------------------------------------


def encode_grants(grants: Grants) -> bytes:
    fields: dict[str, Any] = {
        "roles": {role: [action.value for action in actions] for role, actions in grants.roles.items()}
    }
    if grants.patterns:
        fields["patterns"] = {
            role: [said.configure, said.write, said.read] for role, said in grants.patterns.items()
        }
    if grants.keys:
        fields["keys"] = {
            role: {exchange: [said.write, said.read] for exchange, said in by_exchange.items()}
            for role, by_exchange in grants.keys.items()
        }
    return dump_fields(fields)


def decode_grants(data: bytes) -> Grants:
    return decode(
        data,
        "grants",
        lambda f: Grants(
            {text(role): tuple(Action(a) for a in each(actions)) for role, actions in f["roles"].items()},
            {text(role): NamePatterns(*_texts(said)) for role, said in f.get("patterns", {}).items()},
            {
                text(role): {text(one): KeyPatterns(*_texts(said)) for one, said in by_exchange.items()}
                for role, by_exchange in f.get("keys", {}).items()
            },
        ),
    )


# --- users ----------------------------------------------------------------------------------------------------


def encode_user(user: User) -> bytes:
    return dump_fields(
        {
            "name": user.name,
            "password_hash": user.password_hash,
            "hashing": user.hashing.value,
            "tags": list(user.tags),
        }
    )


def decode_user(data: bytes) -> User:
    return decode(
        data,
        "a user",
        lambda f: User(
            text(f["name"]), text(f["password_hash"]), PasswordHashing(f["hashing"]), _texts(f["tags"])
        ),
    )


# --- catalogs of the lake -------------------------------------------------------------------------------------


def encode_lake_catalog(catalog: LakeCatalog) -> bytes:
    return dump_fields(
        {
            "name": catalog.name,
            "to": catalog.to,
            "catalog": catalog.catalog,
            "options": dict(catalog.options),
            "tenants": None if catalog.tenants is None else list(catalog.tenants),
        }
    )


def decode_lake_catalog(data: bytes) -> LakeCatalog:
    return decode(
        data,
        "a catalog of the lake",
        lambda f: LakeCatalog(
            text(f["name"]),
            text(f["to"]),
            text(f["catalog"]),
            _pairs(f["options"]),
            None if f["tenants"] is None else _texts(f["tenants"]),
        ),
    )


# --- brokers --------------------------------------------------------------------------------------------------


def encode_broker(broker: BrokerInfo) -> bytes:
    return dump_fields(asdict(broker))


def decode_broker(data: bytes) -> BrokerInfo:
    return decode(
        data,
        "a broker's registration",
        lambda f: BrokerInfo(
            text(f["broker_id"]),
            text(f["instance"]),
            _listeners(f),
            number(f.get("node_id", 0)),
            text(f.get("rack", "")),
            tuple(text(name) for name in each(f.get("features", []))),
            flag(f.get("draining", False)),
        ),
    )


def _listeners(f: dict[str, Any]) -> dict[str, str]:
    """Brokers of before named two addresses of theirs, and only those."""
    found = f.get("listeners")
    if found is None:
        found = {"pulsar": f["pulsar_url"], "http": f["http_url"]}
    return {text(name): text(url) for name, url in found.items() if url}


# --- schemas --------------------------------------------------------------------------------------------------


def encode_schema(schema: StoredSchema) -> bytes:
    return dump_fields(
        {
            "version": schema.version,
            "type": schema.type,
            "data": base64.b64encode(schema.data).decode(),
            "properties": dict(schema.properties),
            "role": schema.role,
            "created_ms": schema.created_ms,
            "deleted": schema.deleted,
        }
    )


def decode_schema(data: bytes) -> StoredSchema:
    return decode(
        data,
        "a schema",
        lambda f: StoredSchema(
            number(f["version"]),
            text(f["type"]),
            base64.b64decode(text(f["data"]), validate=True),
            _pairs(f["properties"]),
            text(f["role"]),
            number(f["created_ms"]),
            flag(f["deleted"]),
        ),
    )


def encode_boundaries(boundaries: Boundaries) -> bytes:
    return dump_fields({"points": list(boundaries.points)})


def decode_boundaries(data: bytes) -> Boundaries:
    found = load_fields(data, "a namespace's bundles")
    try:
        return Boundaries(tuple(number(point) for point in found["points"]))
    except (KeyError, ValueError, TypeError, OverflowError, InvalidNameError) as bad:
        raise WireError(f"a namespace's bundles are malformed: {bad!r}") from bad


def encode_claim(claim: BundleClaim) -> bytes:
    """What is not said is not written: there are many."""
    return dump_fields(
        {
            "owner": claim.owner,
            "instance": claim.instance,
            "epoch": claim.epoch,
            **({"next": claim.next} if claim.next else {}),
            **({"split": claim.split} if claim.split else {}),
        }
    )


def decode_claim(data: bytes) -> BundleClaim:
    found = load_fields(data, "a bundle's claim")
    try:
        return BundleClaim(
            text(found["owner"]),
            text(found["instance"]),
            number(found["epoch"]),
            text(found.get("next", "")),
            number(found.get("split", 0)),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as bad:
        raise WireError(f"a bundle's claim is malformed: {bad!r}") from bad


def encode_overview(overview: TopicOverview) -> bytes:
    return dump_fields(
        {
            "version": overview.version,
            "start": overview.start_offset,
            "end": overview.end_offset,
            "bytes": overview.storage_bytes,
            "ledgers": overview.ledgers,
            "terminated": overview.terminated,
            "subscriptions": [
                [one.name, one.mark_delete, one.backlog, one.backlog_bytes, one.holes, dict(one.properties)]
                for one in overview.subscriptions
            ],
        }
    )


def decode_overview(data: bytes) -> TopicOverview:
    """WireError if it is none."""
    return decode(
        data,
        "an overview of a topic",
        lambda f: TopicOverview(
            number(f["version"]),
            number(f["start"]),
            number(f["end"]),
            number(f["bytes"]),
            number(f["ledgers"]),
            flag(f["terminated"]),
            tuple(_subscription(one) for one in each(f["subscriptions"])),
        ),
    )


def _subscription(item: object) -> SubscriptionOverview:
    name, mark_delete, backlog, size, holes, properties = each(item)
    pairs = {text(key): text(value) for key, value in properties.items()}
    return SubscriptionOverview(
        text(name), number(mark_delete), number(backlog), number(size), number(holes), pairs
    )

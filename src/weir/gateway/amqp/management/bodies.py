"""Request bodies, with RabbitMQ's field names."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from weir.rest.routes import Int

Table = dict[str, Any]
_Count = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class ExchangeBody(Struct):
    """Defaults as in RabbitMQ's API: a direct exchange that is not durable."""

    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)


class QueueBody(Struct):
    durable: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)


class BindingBody(Struct):
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


class PublishBody(Struct):
    properties: Table
    routing_key: str
    payload: str
    payload_encoding: str


class GetBody(Struct):
    """`ackmode`: `ack_requeue_true`, `ack_requeue_false`, `reject_requeue_true` or `reject_requeue_false`.
    `truncate`: maximum bytes of each payload in the answer."""

    ackmode: str
    count: _Count = 1
    encoding: str = "auto"
    truncate: _Count | None = None


class VhostBody(Struct):
    description: str = ""
    tags: str | list[str] = ""


class UserBody(Struct):
    """A password, or its hash. A user with neither cannot log in with a password."""

    tags: str | list[str]
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None


class UserNames(Struct):
    users: list[str]


class PermissionBody(Struct):
    configure: str
    write: str
    read: str


class TopicPermissionBody(Struct):
    exchange: str
    write: str
    read: str


class LimitBody(Struct):
    value: Any


class PolicyBody(Struct):
    pattern: str
    definition: Table
    priority: Int = 0
    apply_to: str = field(name="apply-to", default="all")


class DefinitionsBody(Struct):
    """A definitions file; unknown fields are ignored."""

    users: list[Table] = field(default_factory=list)
    vhosts: list[Table] = field(default_factory=list)
    permissions: list[Table] = field(default_factory=list)
    topic_permissions: list[Table] = field(default_factory=list)
    parameters: list[Table] = field(default_factory=list)
    global_parameters: list[Table] = field(default_factory=list)
    policies: list[Table] = field(default_factory=list)
    exchanges: list[Table] = field(default_factory=list)
    queues: list[Table] = field(default_factory=list)
    bindings: list[Table] = field(default_factory=list)

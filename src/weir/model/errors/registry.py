"""The broker: tenants, namespaces and schemas."""

from weir.model.errors.base import BrokerError


class TenantNotFoundError(BrokerError):
    """No such tenant."""


class TenantExistsError(BrokerError):
    """There is a tenant of this name already."""


class NamespaceNotFoundError(BrokerError):
    """No such namespace."""


class NamespaceExistsError(BrokerError):
    """There is a namespace of this name already."""


class TopicExistsError(BrokerError):
    """There is a topic of this name already."""


class ClusterNotFoundError(BrokerError):
    """No such cluster."""


class NotEmptyError(BrokerError):
    """What was to be deleted still holds something."""

    hint = "delete what is in it first"


class SchemaNotFoundError(BrokerError):
    """The topic has no schema, or none of this version."""


class InvalidSchemaError(BrokerError):
    """The schema's definition cannot be read."""


class IncompatibleSchemaError(BrokerError):
    """The schema does not go with those that the topic has."""

    hint = "see the topic's compatibility strategy"

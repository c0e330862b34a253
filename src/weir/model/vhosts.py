"""Virtual hosts of AMQP, which are namespaces: `/` is `public/default`, `name` is `public/name`, and
`tenant/name` is that."""

from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName, check_entity_name

ROOT = "/"


def namespace_of_vhost(vhost: str) -> NamespaceName:
    """InvalidNameError for what no namespace is called."""
    if vhost == ROOT:
        return DEFAULT_NAMESPACE
    if "/" in vhost:
        return NamespaceName.parse(vhost)
    return NamespaceName(DEFAULT_NAMESPACE.tenant, check_entity_name(vhost, "vhost"))


def vhost_of_namespace(namespace: NamespaceName) -> str:
    """The shortest name that a namespace has as a virtual host."""
    if namespace == DEFAULT_NAMESPACE:
        return ROOT
    return namespace.name if namespace.tenant == DEFAULT_NAMESPACE.tenant else str(namespace)

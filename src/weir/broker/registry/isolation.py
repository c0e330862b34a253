"""Which brokers serve a namespace, of what it says itself and what the cluster's isolation policies say."""

from collections.abc import Mapping

from weir.model.isolation import matches
from weir.model.policies import Isolation, IsolationPolicy
from weir.model.topics import NamespaceName

#: What a namespace says that says nothing: every broker.
UNSAID = Isolation()


def isolation_of(
    namespace: NamespaceName, said: Isolation | None, policies: Mapping[str, IsolationPolicy]
) -> Isolation:
    """What the namespace says itself goes first, then the first policy, by name, that names it. All others are
    kept off the brokers that policies keep for somebody, unless there are no others: service goes before it."""
    if not policies or (said is not None and said != UNSAID):
        return said or UNSAID
    name = str(namespace)
    for _, policy in sorted(policies.items()):
        if matches(policy.namespaces, name):
            return Isolation(policy.primary, policy.secondary, policy.min_limit)
    kept = dict.fromkeys(pattern for _, policy in sorted(policies.items()) for pattern in policy.primary)
    return Isolation(excluded=tuple(kept))

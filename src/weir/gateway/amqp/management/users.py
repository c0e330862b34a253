"""Routes for users, permissions and topic permissions.

Permissions are name patterns (configure, write, read) in the namespace's grants; grants made with other APIs are
listed as patterns, too. Topic permissions limit the routing keys of a topic exchange with which a user may publish
and bind. Only superusers may manage users, like administrators in RabbitMQ.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weir.broker.api.metadata import GrantRecords
from weir.gateway.amqp.management.bodies import PermissionBody, TopicPermissionBody, UserBody, UserNames
from weir.gateway.amqp.management.errors import bad_request, not_found
from weir.gateway.amqp.management.listing import LIST_QUERY, Item, Items, answered_list
from weir.gateway.amqp.management.service import Management
from weir.model.queues import namespace_of_vhost, queue_of_topic, vhost_of
from weir.model.registry import Action, KeyPatterns, NamePatterns, PasswordHashing, User, check_role, tags_of
from weir.model.topics import NamespaceName, TopicName
from weir.rest.http import Response
from weir.rest.routes import Call, Route


def permission_bodies(grants: GrantRecords, namespace: NamespaceName) -> Items:
    """Permissions of all roles with grants in a namespace, sorted by name."""
    found = dict(_patterns(grants, namespace))
    return [
        {
            "user": role,
            "vhost": vhost_of(namespace),
            "configure": patterns.configure,
            "write": patterns.write,
            "read": patterns.read,
        }
        for role, patterns in sorted(found.items())
    ]


def _patterns(grants: GrantRecords, namespace: NamespaceName) -> Iterator[tuple[str, NamePatterns]]:
    said = grants.on(namespace)
    produced: dict[str, list[str]] = {}
    consumed: dict[str, list[str]] = {}
    for topic, on_topic in grants.on_topics_of(namespace).items():
        name = queue_of_topic(TopicName.parse(topic))
        for role in on_topic.roles:
            for action, names in ((Action.PRODUCE, produced), (Action.CONSUME, consumed)):
                if on_topic.allows(role, action):
                    names.setdefault(role, []).append(name)
    for role in {**said.roles, **said.patterns, **produced, **consumed}:
        kept = said.patterns.get(role)
        if kept is not None:
            yield role, kept
            continue
        actions = said.roles.get(role, ())
        everywhere = NamePatterns.of(actions)
        write = everywhere.write if Action.PRODUCE in actions else _any_of(produced.get(role, ()))
        read = everywhere.read if Action.CONSUME in actions else _any_of(consumed.get(role, ()))
        both = [name for name in produced.get(role, ()) if name in consumed.get(role, ())]
        configure = everywhere.configure if everywhere.configure != "^$" else _any_of(both)
        yield role, NamePatterns(configure, write, read)


def _any_of(names: Iterable[str]) -> str:
    """A pattern that matches exactly these names."""
    words = [re.escape(name) for name in sorted(names)]
    return f"^({'|'.join(words)})$" if words else "^$"


class PermissionRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._grants = management.admin.registry.grants

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/permissions/{vhost}/{user}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/permissions", "All permissions.", self._all, answer=listed, query=LIST_QUERY),
            route(
                "GET",
                "/vhosts/{vhost}/permissions",
                "Permissions in a vhost.",
                self._of_vhost,
                answer=listed,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/users/{user}/permissions",
                "Permissions of a user.",
                self._of_user,
                answer=listed,
                query=LIST_QUERY,
            ),
            route("GET", one, "Permissions of a user in a vhost.", self._get, answer=dict[str, Any]),
            route(
                "PUT", one, "Set permissions of a user in a vhost.", self._put, body=PermissionBody, creates=True
            ),
            route("DELETE", one, "Revoke permissions of a user in a vhost.", self._delete),
        ]

    def _namespaces(self, role: str) -> list[NamespaceName]:
        """The namespaces whose grants the role may see."""
        authoriser = self._management.admin.authoriser
        return [one for one in self._management.namespaces(role) if authoriser.may_administer(role, one)]

    def _items(self, role: str) -> Items:
        return [body for one in self._namespaces(role) for body in permission_bodies(self._grants, one)]

    async def _all(self, call: Call) -> Any:
        return answered_list(call.query, self._items(call.role))

    async def _of_vhost(self, call: Call) -> Any:
        return answered_list(call.query, permission_bodies(self._grants, self._administered(call)))

    async def _of_user(self, call: Call) -> Any:
        user = call.path["user"]
        return answered_list(call.query, [one for one in self._items(call.role) if one["user"] == user])

    def _administered(self, call: Call) -> NamespaceName:
        name = namespace_of_vhost(call.path["vhost"])
        self._management.check_admin(call.role, name)
        return self._management.namespace(call)

    def _find(self, namespace: NamespaceName, user: str) -> Item | None:
        found = permission_bodies(self._grants, namespace)
        return next((one for one in found if one["user"] == user), None)

    async def _get(self, call: Call) -> Item:
        found = self._find(self._administered(call), call.path["user"])
        if found is None:
            raise not_found()
        return found

    async def _put(self, call: Call) -> Response | None:
        name, user = namespace_of_vhost(call.path["vhost"]), call.path["user"]
        self._management.check_admin(call.role, name)
        return Response(201) if await self.put(name, user, call.body) else None

    async def put(self, namespace: NamespaceName, user: str, body: PermissionBody) -> bool:
        """Set permissions; returns whether they are new. The user need not exist: tokens have roles, too."""
        if self._management.admin.registry.namespaces.find(namespace) is None:
            raise bad_request("vhost_or_user_not_found", hint="make the vhost first")
        known = self._find(namespace, user) is not None
        await self._forget_topics(namespace, user)
        await self._grants.permit(namespace, user, NamePatterns(body.configure, body.write, body.read))
        return not known

    async def _delete(self, call: Call) -> None:
        namespace, user = self._administered(call), call.path["user"]
        if self._find(namespace, user) is None:
            raise not_found()
        await self.clear(namespace, user)

    async def clear(self, namespace: NamespaceName, user: str) -> None:
        await self._forget_topics(namespace, user)
        await self._grants.revoke(namespace, user)

    async def clear_all(self, user: str) -> None:
        """Revoke all grants of a user in every namespace."""
        registry = self._management.admin.registry
        for tenant in registry.tenants.names():
            for namespace in registry.namespaces.names(tenant):
                if self._find(namespace, user) is not None:
                    await self.clear(namespace, user)
                for exchange in list(self._grants.on(namespace).keys.get(user, ())):
                    await self._grants.permit_keys(namespace, user, exchange, None)

    async def _forget_topics(self, namespace: NamespaceName, user: str) -> None:
        """Revoke grants on single topics, because a permission defines all rights of a user in a vhost."""
        for topic, grants in self._grants.on_topics_of(namespace).items():
            if user in grants.roles:
                await self._grants.revoke(TopicName.parse(topic), user)


def topic_permission_bodies(grants: GrantRecords, namespace: NamespaceName) -> Items:
    """Topic permissions of all roles in a namespace, sorted by user and exchange."""
    return [
        {
            "user": role,
            "vhost": vhost_of(namespace),
            "exchange": exchange,
            "write": patterns.write,
            "read": patterns.read,
        }
        for role, by_exchange in sorted(grants.on(namespace).keys.items())
        for exchange, patterns in sorted(by_exchange.items())
    ]


class TopicPermissionRoutes:
    def __init__(self, management: Management) -> None:
        self._management = management
        self._grants = management.admin.registry.grants

    def routes(self) -> list[Route]:
        route, base, one = self._management.route, "/topic-permissions", "/topic-permissions/{vhost}/{user}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", base, "All topic permissions.", self._all, answer=listed, query=LIST_QUERY),
            route(
                "GET",
                "/vhosts/{vhost}/topic-permissions",
                "Topic permissions in a vhost.",
                self._of_vhost,
                answer=listed,
                query=LIST_QUERY,
            ),
            route(
                "GET",
                "/users/{user}/topic-permissions",
                "Topic permissions of a user.",
                self._of_user,
                answer=listed,
                query=LIST_QUERY,
            ),
            route("GET", one, "Those of a user in a vhost.", self._get, answer=listed, query=LIST_QUERY),
            route("PUT", one, "Set a topic permission.", self._put, body=TopicPermissionBody, creates=True),
            route("DELETE", one, "Clear topic permissions of a user.", self._delete),
        ]

    def _items(self, role: str) -> Items:
        authoriser = self._management.admin.authoriser
        known = [one for one in self._management.namespaces(role) if authoriser.may_administer(role, one)]
        return [body for one in known for body in topic_permission_bodies(self._grants, one)]

    def _administered(self, call: Call) -> NamespaceName:
        self._management.check_admin(call.role, namespace_of_vhost(call.path["vhost"]))
        return self._management.namespace(call)

    def _of(self, namespace: NamespaceName, user: str) -> Items:
        return [one for one in topic_permission_bodies(self._grants, namespace) if one["user"] == user]

    async def _all(self, call: Call) -> Any:
        return answered_list(call.query, self._items(call.role))

    async def _of_vhost(self, call: Call) -> Any:
        return answered_list(call.query, topic_permission_bodies(self._grants, self._administered(call)))

    async def _of_user(self, call: Call) -> Any:
        user = call.path["user"]
        return answered_list(call.query, [one for one in self._items(call.role) if one["user"] == user])

    async def _get(self, call: Call) -> Any:
        found = self._of(self._administered(call), call.path["user"])
        if not found:
            raise not_found()
        return answered_list(call.query, found)

    async def _put(self, call: Call) -> Response | None:
        name, user = namespace_of_vhost(call.path["vhost"]), call.path["user"]
        self._management.check_admin(call.role, name)
        return Response(201) if await self.put(name, user, call.body) else None

    async def put(self, namespace: NamespaceName, user: str, body: TopicPermissionBody) -> bool:
        """Set a topic permission; returns whether the user had none in this vhost. The user need not exist: tokens
        have roles, too."""
        if self._management.admin.registry.namespaces.find(namespace) is None:
            raise bad_request("vhost_or_user_not_found", hint="make the vhost first")
        known = bool(self._of(namespace, user))
        await self._grants.permit_keys(namespace, user, body.exchange, KeyPatterns(body.write, body.read))
        return not known

    async def _delete(self, call: Call) -> None:
        namespace, user = self._administered(call), call.path["user"]
        found = self._of(namespace, user)
        if not found:
            raise not_found()
        for one in found:
            await self._grants.permit_keys(namespace, user, one["exchange"], None)


_HASHINGS: Mapping[str, PasswordHashing] = {one.value: one for one in PasswordHashing}


def user_body(user: User) -> Item:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing.value,
        "tags": list(user.tags),
        "limits": {},
    }


class UserRoutes:
    def __init__(self, management: Management, permissions: PermissionRoutes) -> None:
        self._management = management
        self._users = management.admin.registry.users
        self._permissions = permissions

    def routes(self) -> list[Route]:
        route, one = self._management.route, "/users/{user}"
        listed: Any = list[Any] | dict[str, Any]
        return [
            route("GET", "/users", "All users.", self._list, answer=listed, query=LIST_QUERY),
            route(
                "GET",
                "/users/without-permissions",
                "Users without permissions.",
                self._without,
                answer=listed,
                query=LIST_QUERY,
            ),
            route("POST", "/users/bulk-delete", "Delete users.", self._delete_some, body=UserNames),
            route("GET", one, "One user.", self._get, answer=dict[str, Any]),
            route("PUT", one, "Create or change a user.", self._put, body=UserBody, creates=True),
            route("DELETE", one, "Delete a user and its grants.", self._delete),
        ]

    def _found(self, name: str) -> User:
        found = self._users.find(name)
        if found is None:
            raise not_found()
        return found

    async def _list(self, call: Call) -> Any:
        self._management.check_superuser(call.role)
        found = [self._users.find(name) for name in self._users.names()]
        return answered_list(call.query, [user_body(user) for user in found if user is not None])

    async def _without(self, call: Call) -> Any:
        self._management.check_superuser(call.role)
        allowed = {
            one["user"]
            for namespace in self._management.namespaces(call.role)
            for one in permission_bodies(self._management.admin.registry.grants, namespace)
        }
        found = [self._users.find(name) for name in self._users.names() if name not in allowed]
        return answered_list(call.query, [user_body(user) for user in found if user is not None])

    async def _get(self, call: Call) -> Item:
        self._management.check_superuser(call.role)
        return user_body(self._found(call.path["user"]))

    async def _put(self, call: Call) -> Response | None:
        self._management.check_superuser(call.role)
        return Response(201) if await self.put(call.path["user"], call.body) else None

    async def put(self, name: str, body: UserBody) -> bool:
        """Create or change a user; returns whether it is new. Stores only the hash of a plain text password."""
        hashing = _HASHINGS.get(body.hashing_algorithm or PasswordHashing.SHA256.value)
        if hashing is None:
            raise bad_request(
                f"hashing algorithm {str(body.hashing_algorithm)[:80]!r} is not known here",
                hint=f"give the user a new password, or use {' or '.join(_HASHINGS)}",
            )
        if body.password:
            hashed, hashing = self._users.hashed(body.password), PasswordHashing.SHA256
        else:
            hashed = body.password_hash or ""
        return await self._users.put(User(check_role(name), hashed, hashing, tags_of(body.tags)))

    async def _delete(self, call: Call) -> None:
        self._management.check_superuser(call.role)
        self._found(call.path["user"])
        await self._remove(call, call.path["user"])

    async def _delete_some(self, call: Call) -> None:
        self._management.check_superuser(call.role)
        for name in call.body.users:
            if self._users.find(name) is None:
                raise bad_request(f"no_such_user {name[:80]}")
        for name in call.body.users:
            await self._remove(call, name)

    async def _remove(self, call: Call, name: str) -> None:
        """Delete the grants before the user, so that the call can be repeated after a failure."""
        await self._permissions.clear_all(name)
        await self._users.delete(name)
        await self._management.close_all(call, "user", name, f"user '{name}' is deleted")

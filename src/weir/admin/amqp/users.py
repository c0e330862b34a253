"""Users with passwords: list, get, put, delete. For superusers only, as RabbitMQ's are for administrators."""

from collections.abc import Mapping
from typing import Any

from weir.admin.amqp.bodies import UserBody, UserNames
from weir.admin.amqp.context import Management
from weir.admin.amqp.listing import LIST_QUERY, Item, answered_list
from weir.admin.amqp.permissions import PermissionRoutes, permission_bodies
from weir.admin.amqp.refusals import bad_request, not_found
from weir.admin.http import Response
from weir.admin.routing import Call, Route
from weir.model.registry import check_role
from weir.model.users import PasswordHashing, User, tags_of

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
                "Those that may do nothing.",
                self._without,
                answer=listed,
                query=LIST_QUERY,
            ),
            route("POST", "/users/bulk-delete", "Delete users.", self._delete_some, body=UserNames),
            route("GET", one, "One user.", self._get, answer=dict[str, Any]),
            route("PUT", one, "Make or change a user.", self._put, body=UserBody, creates=True),
            route("DELETE", one, "Delete a user, and what it was granted.", self._delete),
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
        """Whether it is new. A password in clear is hashed at once, and kept nowhere."""
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
        """Its grants first: what is cut short is begun again."""
        await self._permissions.clear_all(name)
        await self._users.delete(name)
        await self._management.close_all(call, "user", name, f"user '{name}' is deleted")

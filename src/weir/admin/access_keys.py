"""Access keys: what RocketMQ's clients sign their calls with."""

from collections.abc import Callable

from msgspec import Struct

from weir.admin.routing import Call, Route
from weir.broker.api import Authoriser
from weir.model.registry import check_role


class AccessKeyBody(Struct, rename="camel"):
    """`access_key`: the role's name."""

    access_key: str
    secret_key: str


class AccessKeyRoutes:
    def __init__(self, authoriser: Authoriser, secret_of: Callable[[str], str]) -> None:
        self._authoriser = authoriser
        self._secret_of = secret_of

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/access-keys/{role}",
                "The access key and the secret key by which RocketMQ's clients are a role.",
                self._get,
                answer=AccessKeyBody,
                refusals={412: "this is no role"},
                tag="connections",
            )
        ]

    async def _get(self, call: Call) -> AccessKeyBody:
        self._authoriser.check_superuser(call.role)
        role = check_role(call.path["role"])
        return AccessKeyBody(role, self._secret_of(role))

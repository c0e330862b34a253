"""Who runs streams, connectors or functions: whoever has the lease. That somebody has it, everybody may know."""

from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.broker.api.definitions import LeasedRunner
from weir.rest.routes import Call, Route


class RunnerBody(Struct, rename="camel"):
    #: Unlike any other's.
    runner: Annotated[str, Meta(min_length=1, max_length=200)]
    #: For people: machine and process.
    where: Annotated[str, Meta(max_length=200)]
    #: For how long it need not ask again.
    ttl_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 15_000


class RunnerAnswer(Struct):
    runner: str | None = None
    where: str | None = None
    #: Whether the one who asks may be it.
    allowed: bool = False


class RunnerRoutes:
    """`runs`: what the runner runs, in words and as the tag; `kept`: refuses where nothing is kept."""

    def __init__(
        self,
        context: AdminContext,
        kept: Callable[[], LeasedRunner],
        path: str,
        *,
        runs: str,
        refusals: Mapping[int, str],
    ) -> None:
        self._context = context
        self._kept = kept
        self._path = path
        self._runs = runs
        self._refusals = {409: f"another one runs the {runs}", **refusals}

    def routes(self) -> list[Route]:
        path, runs, busy = self._path, self._runs, self._refusals
        return [
            Route(
                "GET",
                path,
                f"The runner of the {runs}.",
                self._runner,
                answer=RunnerAnswer,
                refusals=busy,
                tag=runs,
            ),
            Route(
                "PUT",
                path,
                "Be the runner for a while, or for a while longer.",
                self._take,
                body=RunnerBody,
                refusals=busy,
                tag=runs,
            ),
            Route("DELETE", f"{path}/{{runner}}", "Run no more.", self._release, refusals=busy, tag=runs),
        ]

    async def _runner(self, call: Call) -> RunnerAnswer:
        found, allowed = await self._kept().runner(), self._context.authoriser.is_superuser(call.role)
        if found is None:
            return RunnerAnswer(allowed=allowed)
        return RunnerAnswer(found.runner, found.where, allowed)

    async def _take(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        await self._kept().take_runner(call.body.runner, call.body.where, call.body.ttl_ms)

    async def _release(self, call: Call) -> None:
        self._context.authoriser.check_superuser(call.role)
        await self._kept().release_runner(call.path["runner"])

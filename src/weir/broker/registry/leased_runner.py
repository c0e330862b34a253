"""The runner of streams, connectors or functions, by a lease in the metadata."""

from dataclasses import replace

from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.errors import RunnerBusyError
from weir.model.sql_streams import RunnerLease
from weir.runtime import Runtime
from weir.wire.sql_streams import decode_runner, encode_runner

RUNNER: Codec[RunnerLease] = Codec(encode_runner, decode_runner)


class LeasedRunner:
    """Fills `api.LeasedRunner`, for who keeps what is run; `runs`: that, in words."""

    def __init__(self, meta: MetaStore, runtime: Runtime, key: str, runs: str) -> None:
        self._meta = meta
        self._runtime = runtime
        self._lease_key = key
        self._runs = runs

    async def runner(self) -> RunnerLease | None:
        found = await read(self._meta, self._lease_key, RUNNER)
        return found.value if found is not None and self._alive(found.value) else None

    async def take_runner(self, runner: str, where: str, ttl_ms: int) -> RunnerLease:
        expires_ms = self._runtime.clock.wall_ms() + ttl_ms

        def taken(current: RunnerLease | None) -> RunnerLease:
            if current is not None and current.runner != runner and self._alive(current):
                raise RunnerBusyError(f"the {self._runs} are run by {current.where}")
            return RunnerLease(runner, where, expires_ms)

        return (await upsert(self._meta, self._lease_key, RUNNER, taken, runtime=self._runtime)).value

    async def release_runner(self, runner: str) -> None:
        def released(current: RunnerLease | None) -> RunnerLease:
            if current is None or current.runner != runner:
                return current or RunnerLease(runner, "", 0)
            return replace(current, expires_ms=0)

        await upsert(self._meta, self._lease_key, RUNNER, released, runtime=self._runtime)

    def _alive(self, lease: RunnerLease) -> bool:
        return lease.expires_ms > self._runtime.clock.wall_ms()

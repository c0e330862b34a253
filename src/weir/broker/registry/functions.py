"""Functions in the metadata: what is deployed, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.
"""

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.api import Definition, Deployed
from weir.broker.registry.leased_runner import LeasedRunner
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.errors import FunctionExistsError, FunctionNotFoundError, TooManyError
from weir.model.functions import Function, FunctionStats, FunctionWanted
from weir.model.topics import NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.functions import decode_function, decode_stats, encode_function, encode_stats

FUNCTION: Codec[Function] = Codec(encode_function, decode_function)
STATS: Codec[FunctionStats] = Codec(encode_stats, decode_stats)

_MAX_FUNCTIONS = 1_000


class Functions(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.FUNCTION_RUNNER, "functions")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[Deployed]:
        """All of them, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        told = await self._meta.list(f"{keys.FUNCTION_STATS}{within}")
        stats = {one.id: one for one in (decode_stats(item.value) for item in told.items)}
        found = await self._meta.list(f"{keys.FUNCTIONS}{within}")
        functions = [decode_function(item.value) for item in found.items]
        return [Deployed(one, stats.get(one.id)) for one in functions]

    async def get(self, name: TopicName) -> Deployed:
        """FunctionNotFoundError if there is none."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None:
            raise _none(name)
        told = await read(self._meta, keys.function_stats(name), STATS)
        stats = told.value if told is not None and told.value.id == found.value.id else None
        return Deployed(found.value, stats)

    async def deploy(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """A new one. Asking twice is fine; FunctionExistsError if there is another of this name."""
        listed = await self._meta.list(keys.FUNCTIONS)
        if len(listed.items) >= _MAX_FUNCTIONS and all(item.key != keys.function(name) for item in listed.items):
            raise TooManyError(f"there are {_MAX_FUNCTIONS} functions", hint="delete one first")
        _check_alone(name, what, [decode_function(item.value) for item in listed.items])
        now_ms = self._runtime.clock.wall_ms()
        new = Function(
            name=name,
            id=f"{self._runtime.rng.getrandbits(96):024x}",
            version=1,
            code=what.code,
            file=what.file,
            entry=what.entry,
            inputs=what.inputs,
            output=what.output,
            options=dict(what.options),
            role=role,
            created_ms=now_ms,
            updated_ms=now_ms,
        )

        def deployed(current: Function | None) -> Function:
            if current is not None and _definition(current) != _definition(new):
                raise FunctionExistsError(f"there is a function {name.local} already")
            return current or new

        return (await upsert(self._meta, keys.function(name), FUNCTION, deployed, runtime=self._runtime)).value

    async def update(self, name: TopicName, what: Definition, *, role: str) -> Function:
        """Its next version, if anything is different; FunctionNotFoundError if there is none."""
        listed = await self._meta.list(keys.FUNCTIONS)
        _check_alone(name, what, [decode_function(item.value) for item in listed.items])
        now_ms = self._runtime.clock.wall_ms()

        def updated(current: Function | None) -> Function:
            if current is None:
                raise _none(name)
            new = replace(
                current,
                version=current.version + 1,
                code=what.code,
                file=what.file,
                entry=what.entry,
                inputs=what.inputs,
                output=what.output,
                options=dict(what.options),
                role=role,
                updated_ms=now_ms,
            )
            return current if _definition(new) == _definition(current) else new

        return (await upsert(self._meta, keys.function(name), FUNCTION, updated, runtime=self._runtime)).value

    async def want(self, name: TopicName, wanted: FunctionWanted) -> Function:
        """What it shall do; FunctionNotFoundError if there is none."""

        def changed(current: Function | None) -> Function:
            if current is None:
                raise _none(name)
            return replace(current, wanted=wanted)

        return (await upsert(self._meta, keys.function(name), FUNCTION, changed, runtime=self._runtime)).value

    async def delete(self, name: TopicName) -> None:
        """FunctionNotFoundError if there is none. Its topics stay."""
        found = await self._meta.get(keys.function(name))
        if found is None:
            raise _none(name)
        await self._meta.delete(found.key)
        await self._meta.delete(keys.function_stats(name))

    # --- the runner's word --------------------------------------------------------------------------------------

    async def report(self, name: TopicName, stats: FunctionStats) -> None:
        """FunctionNotFoundError unless it is about the function that has this name now."""
        found = await read(self._meta, keys.function(name), FUNCTION)
        if found is None or found.value.id != stats.id:
            raise _none(name)
        stamped = replace(stats, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.function_stats(name), encode_stats(stamped))


def _check_alone(name: TopicName, what: Definition, others: Sequence[Function]) -> None:
    """A function's name is its subscription's: two of one name in two namespaces would move each other's position
    in a topic that both read, and whoever is deleted first would take what is kept for the other."""
    for other in others:
        shared = [topic for topic in what.inputs if topic in other.inputs]
        if shared and other.name.local == name.local and other.name != name:
            raise FunctionExistsError(
                f"the function {name.local} of {other.name.namespace} reads {shared[0]} by the same subscription",
                hint="give this one another name",
            )


def _definition(function: Function) -> tuple[object, ...]:
    """What an update can change."""
    options = dict(function.options)
    return function.code, function.file, function.entry, function.inputs, function.output, options


def _none(name: TopicName) -> FunctionNotFoundError:
    return FunctionNotFoundError(f"there is no function {name.local}")

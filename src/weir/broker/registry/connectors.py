"""Definitions of connectors in the metadata: what is wanted, what the runner says of them, and which runner it is.

The store is asked each time: these are looked at by people, and by one runner every other second.
"""

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.api import DescribedConnector
from weir.broker.registry.leased_runner import LeasedRunner
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.connectors import Connector, ConnectorProgress, ConnectorWanted
from weir.model.errors import (
    ConnectorExistsError,
    ConnectorNotFoundError,
    MetaConflictError,
    TooManyError,
)
from weir.model.topics import NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.connectors import (
    decode_connector,
    decode_connector_progress,
    encode_connector,
    encode_connector_progress,
)

CONNECTOR: Codec[Connector] = Codec(encode_connector, decode_connector)
PROGRESS: Codec[ConnectorProgress] = Codec(encode_connector_progress, decode_connector_progress)

_MAX_CONNECTORS = 1_000
_DELETE_ATTEMPTS = 20


class Connectors(LeasedRunner):
    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        super().__init__(meta, runtime, keys.CONNECTOR_RUNNER, "connectors")

    # --- definitions --------------------------------------------------------------------------------------------

    async def list(self, namespace: NamespaceName | None = None) -> Sequence[DescribedConnector]:
        """All of them, or those of a namespace, by name."""
        within = "" if namespace is None else f"{namespace}/"
        told = await self._meta.list(f"{keys.CONNECTOR_PROGRESS}{within}")
        progress = {one.id: one for one in (decode_connector_progress(item.value) for item in told.items)}
        found = await self._meta.list(f"{keys.CONNECTORS}{within}")
        connectors = [decode_connector(item.value) for item in found.items]
        return [DescribedConnector(one, progress.get(one.id)) for one in connectors]

    async def get(self, name: TopicName) -> DescribedConnector:
        """ConnectorNotFoundError if there is none."""
        found = await read(self._meta, keys.connector(name), CONNECTOR)
        if found is None:
            raise _none(name)
        told = await read(self._meta, keys.connector_progress(name), PROGRESS)
        progress = told.value if told is not None and told.value.id == found.value.id else None
        return DescribedConnector(found.value, progress)

    async def add(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Define it. Asking twice is fine; ConnectorExistsError if there is another of this name."""
        listed = await self._meta.list(keys.CONNECTORS)
        if len(listed.items) >= _MAX_CONNECTORS and all(item.key != keys.connector(name) for item in listed.items):
            raise TooManyError(f"there are {_MAX_CONNECTORS} connectors", hint="remove one first")
        connector_id = f"{self._runtime.rng.getrandbits(96):024x}"
        wanted, now_ms = ConnectorWanted.RUNNING, self._runtime.clock.wall_ms()
        new = Connector(name, connector_id, config, wanted, role, now_ms)

        def changed(current: Connector | None) -> Connector:
            if current is not None and current.config != config:
                raise ConnectorExistsError(f"there is a connector {name.local} already")
            return current or new

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def update(self, name: TopicName, *, config: str, role: str) -> Connector:
        """Change its definition. It keeps its id, and with it its positions. ConnectorNotFoundError."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.config == config else replace(current, config=config, role=role)

        return (await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)).value

    async def want(self, name: TopicName, wanted: ConnectorWanted) -> None:
        """Change what it shall do; ConnectorNotFoundError if there is none."""

        def changed(current: Connector | None) -> Connector:
            if current is None:
                raise _none(name)
            return current if current.wanted is wanted else replace(current, wanted=wanted)

        await upsert(self._meta, keys.connector(name), CONNECTOR, changed, runtime=self._runtime)

    async def delete(self, name: TopicName) -> None:
        """ConnectorNotFoundError if there is none. What it carried stays; the rest its runner cleans."""
        for _ in range(_DELETE_ATTEMPTS):
            found = await self._meta.get(keys.connector(name))
            if found is None:
                raise _none(name)
            await self._note_removed(decode_connector(found.value))
            try:
                await self._meta.delete(found.key, expect=found.version)
            except MetaConflictError:
                continue  # it was paused or resumed meanwhile
            await self._meta.delete(keys.connector_progress(name))
            return
        raise MetaConflictError(f"{name} is changed again and again", hint="try again")

    # --- what removed ones left ---------------------------------------------------------------------------------

    async def _note_removed(self, connector: Connector) -> None:
        """Before it is gone, so that no crash leaves something that nobody knows of."""
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        if len(listed.items) < _MAX_CONNECTORS:
            await self._meta.put(keys.connector_removed(connector.id), encode_connector(connector))

    async def removed(self) -> Sequence[Connector]:
        """Connectors that are no more, and may have left something."""
        defined = {one.connector.id for one in await self.list()}
        listed = await self._meta.list(keys.CONNECTORS_REMOVED)
        found = [decode_connector(item.value) for item in listed.items]
        return [connector for connector in found if connector.id not in defined]

    async def forget_removed(self, connector_id: str) -> None:
        """Nothing is left of it; fine if it was forgotten before."""
        await self._meta.delete(keys.connector_removed(connector_id))

    # --- the runner's word --------------------------------------------------------------------------------------

    async def report(self, name: TopicName, progress: ConnectorProgress) -> None:
        """ConnectorNotFoundError unless it is about the connector that has this name now."""
        found = await read(self._meta, keys.connector(name), CONNECTOR)
        if found is None or found.value.id != progress.id:
            raise _none(name)
        stamped = replace(progress, reported_ms=self._runtime.clock.wall_ms())
        await self._meta.put(keys.connector_progress(name), encode_connector_progress(stamped))


def _none(name: TopicName) -> ConnectorNotFoundError:
    return ConnectorNotFoundError(f"there is no connector {name.namespace}/{name.local}")

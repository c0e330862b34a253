"""A broker whose process has ended is unregistered by the supervisor that waited for it: the others need not wait
for the end of its lease."""

import asyncio
import logging
from dataclasses import replace

from weir.broker.bundles.registration import BROKER
from weir.broker.peers.credentials import ClusterCredentialSettings, load_credentials
from weir.broker.peers.settings import LISTENER
from weir.meta import keys
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.meta.update import read
from weir.model.errors import WeirError
from weir.runtime.interfaces import Runtime
from weir.wire.registry import encode_broker

log = logging.getLogger(__name__)

#: If the store does not answer in time, the lease ends by itself.
_LIMIT_S = 2.0
_LEASE_S = 2.0


async def unregister(meta: MetaStore, broker_id: str, peer_port: int) -> bool:
    """Whether the broker was registered with this port for other brokers, as the process that is known to have
    ended was, and is not any more. What another process has written meanwhile stays."""
    found = await read(meta, keys.broker(broker_id), BROKER)
    if found is None or found.value.listeners.get(LISTENER, "").rpartition(":")[2] != str(peer_port):
        return False
    # The last that is told of it is that it takes nothing any more, as of a broker that goes in order. It goes
    # with a lease, so that nothing of it stays if this process ends, too.
    lease = await meta.lease(_LEASE_S)
    last_word = encode_broker(replace(found.value, draining=True))
    await meta.put(found.key, last_word, expect=found.version, lease=lease)
    await lease.revoke()
    return True


class Unregistering:
    """For the brokers of one supervisor."""

    def __init__(self, runtime: Runtime, meta_url: str, secret: str, peer_ports: dict[str, int]) -> None:
        """`secret`: where it is, as `cluster.secret` says it."""
        self._runtime = runtime
        self._meta_url = meta_url
        self._secret = secret
        self._peer_ports = peer_ports

    async def ended(self, name: str) -> None:
        """The process of this name has ended, and none is there in its place yet."""
        port = self._peer_ports.get(name)
        if port is None:
            return
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._unregister(name, port)
        except (WeirError, TimeoutError, OSError) as failed:
            log.info("%s stays registered until its lease ends: %s", name, failed)

    async def _unregister(self, name: str, port: int) -> None:
        shown = await load_credentials(self._runtime.disk, ClusterCredentialSettings(secret=self._secret))
        meta = await connect(self._meta_url, self._runtime, secret=shown.secret)
        try:
            if await unregister(meta, name, port):
                log.info("%s is unregistered: its process has ended", name)
        finally:
            await meta.close()

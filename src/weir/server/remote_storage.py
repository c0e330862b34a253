"""The storage of a cluster's broker: metadata in other processes, ledgers on remote bookies.

Write hold for cluster backups: a backup requests it in the metadata, and each broker answers there. `hold`: the
broker begins no write, and reports the ends of all its open ledgers. `copy`: writes continue, but the broker
deletes no ledger; it reports whether the hold was unbroken until then, and which empty ledgers it has begun
meanwhile. The request is under the backup's lease: when that expires, the broker returns to normal.

Membership check: a starting node asks the running bookies whether they accept its secret. Otherwise a wrong secret
would show only with the first message, far from the wrong setting.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir.bookie.damage import Damages
from weir.broker.peers.peer_calls import PeerCredentials
from weir.broker.security.cluster_credentials import ClusterCredentialSettings, load_credentials
from weir.ledger.client import LedgerClient
from weir.ledger.write_freeze import HeldMeta, WriteHold
from weir.meta import keys
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.model.check import present
from weir.model.errors import (
    BookieUnavailableError,
    ConfigError,
    MetaError,
    NetworkError,
    NotAuthenticatedError,
    WeirError,
    WireError,
)
from weir.model.ids import BookieId, LedgerId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime, Timer
from weir.runtime.node_link import prove
from weir.runtime.tasks import TaskScope
from weir.server.local_storage import open_ledgers
from weir.server.node import Node
from weir.wire.bookie import MAX_HELLO_BYTES, PURPOSE
from weir.wire.metadata import BookieInfo
from weir.wire.node.frames import FrameSplitter
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingClient

log = logging.getLogger(__name__)

HOLD, COPY = "hold", "copy"
#: The longest write hold, whatever happens to the backup that requested it.
LONGEST_S = 20.0
_LEDGERS_PER_PART = 20_000
_PAUSE_S = 1.0


class BackupHold:
    def __init__(self, runtime: Runtime, meta: MetaStore, ledgers: LedgerClient, broker_id: str) -> None:
        """`meta`: the store itself, which the hold does not delay."""
        self._clock = runtime.clock
        self._meta = meta
        self._ledgers = ledgers
        self._hold = ledgers.context.hold
        self._broker_id = broker_id
        self._tasks = TaskScope("backup-hold")
        #: The request of the current or last hold, and the reported ledgers.
        self._request = ""
        self._told: dict[int, int] = {}
        self._limit: Timer | None = None

    def start(self) -> None:
        self._tasks.spawn(self._follow(), "follow")

    async def close(self) -> None:
        await self._tasks.close()
        self._end_hold()

    async def _follow(self) -> None:
        while True:
            try:
                listing = await self._meta.list(keys.BACKUP_REQUEST)
                await self._obey(listing.items[0].value if listing.items else None)
                async for change in self._meta.watch(keys.BACKUP_REQUEST, since=listing.revision):
                    await self._obey(change.value)
            except MetaError as failure:
                log.info("cannot watch requests for backups: %s", failure)
            except (ValueError, KeyError, TypeError) as wrong:
                log.warning("invalid request for a backup: %r", wrong)
            await self._clock.sleep(_PAUSE_S)

    async def _obey(self, value: bytes | None) -> None:
        if value is None:
            self._end_hold()
            if self._hold.keeps:
                log.info("cluster backup ended or was abandoned")
                for ledger_id in self._hold.let_go():
                    self._tasks.spawn(self._delete(ledger_id), "delete")
            return
        said = json.loads(value)
        request, step = str(said["id"]), str(said["step"])
        if step == HOLD and request != self._request:
            await self._begin(request)
        elif step == COPY and request == self._request:
            await self._go_on(request)

    async def _begin(self, request: str) -> None:
        self._request = request
        self._hold.begin()
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._clock.call_later(LONGEST_S, self._end_hold)
        self._told = {int(ledger): int(end) for ledger, end in self._hold.ends()}
        log.info("writes paused for a cluster backup: %s open ledgers", len(self._told))
        await self._answer(request, HOLD, list(self._told.items()))

    async def _go_on(self, request: str) -> None:
        unbroken = self._hold.on
        new = [(int(ledger), -1) for ledger, _ in self._hold.ends() if int(ledger) not in self._told]
        self._end_hold()
        await self._answer(request, COPY, new if unbroken else None)

    async def _answer(self, request: str, step: str, ends: Sequence[tuple[int, int]] | None) -> None:
        """None: writes were not held all the time."""
        parts = (
            [ends[at : at + _LEDGERS_PER_PART] for at in range(0, len(ends), _LEDGERS_PER_PART)] if ends else []
        )
        for number, part in enumerate(parts, 1):
            await self._put(request, step, number, {"ends": part})
        await self._put(request, step, 0, {"unbroken": ends is not None, "parts": len(parts)})

    async def _put(self, request: str, step: str, part: int, fields: object) -> None:
        """The requester removes the answer; the next backup removes answers to a dead requester."""
        await self._meta.put(keys.backup_answer(request, step, self._broker_id, part), json.dumps(fields).encode())

    def _end_hold(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if self._hold.on:
            self._hold.end()

    async def _delete(self, ledger_id: LedgerId) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except WeirError as failure:
            log.warning("cannot delete ledger %s: %s", ledger_id, failure)


_TIMEOUT_S = 3.0
#: A dying bookie may also drop the connection; a bookie that does it twice refuses on purpose.
_ATTEMPTS = 2
_BELONGING_PAUSE_S = 0.5


async def check_belongs(
    runtime: Runtime, bookies: Mapping[BookieId, BookieInfo], credentials: PeerCredentials, *, setting: str
) -> None:
    """ConfigError if bookies are reachable, and none accepts this node as a member of the cluster. `setting`: the
    setting that names the secret."""
    secret = credentials.secret
    if secret is None:
        return
    refusing = list(bookies.values())
    for attempt in range(_ATTEMPTS):
        if attempt:
            await runtime.clock.sleep(_BELONGING_PAUSE_S)
        answers = await asyncio.gather(*(_refused(runtime, one, credentials, secret) for one in refusing))
        if any(answer is False for answer in answers):
            return
        refusing = [one for one, answer in zip(refusing, answers, strict=True) if answer]
        if not refusing:
            return
    one = refusing[0]
    raise ConfigError(
        f"{setting} is not the secret of this cluster: bookie {one.bookie_id} at {one.host}:{one.port} does not"
        " know it",
        hint="all nodes need the same: copy the file from a machine of the cluster",
    )


async def _refused(
    runtime: Runtime, bookie: BookieInfo, credentials: PeerCredentials, secret: ClusterSecret
) -> bool | None:
    """Whether the bookie rejects this node's secret; None if it is unreachable."""
    try:
        connection = await runtime.net.connect(
            bookie.host, bookie.port, timeout_s=_TIMEOUT_S, tls=credentials.client_tls
        )
    except NetworkError as silent:
        log.debug("bookie %s is unreachable: %s", bookie.bookie_id, silent)
        return None
    # Accept any bookie id: the registration may be older than the listener at that address.
    proving = ProvingClient(secret, PURPOSE, "", runtime.rng.randbytes(NONCE_BYTES))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await prove(connection, FrameSplitter(MAX_HELLO_BYTES), proving)
    except TimeoutError:
        return None
    except (NetworkError, NotAuthenticatedError, WireError) as refused:
        log.debug("bookie %s: %s", bookie.bookie_id, refused)
        return True if proving.challenged else None
    finally:
        connection.abort()
    return False


_NOT_STARTED = "storage is started before it is used"


@dataclass(frozen=True, slots=True)
class RemoteStorageSettings:
    """The metadata, this node's name there, and the quorum of ledgers."""

    meta_url: str
    credentials: ClusterCredentialSettings
    bookies: int = 1
    #: The broker's id, for requests to all brokers to hold their writes.
    name: str = ""


class RemoteStorage(Node):
    """Fills `BrokerStorage`; it has no disk."""

    def __init__(self, runtime: Runtime, settings: RemoteStorageSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        super().__init__()
        self._meta: MetaStore | None = None
        self._ledgers: LedgerClient | None = None
        self.damages = Damages()

    @property
    def meta(self) -> MetaStore:
        return present(self._meta, _NOT_STARTED)

    @property
    def ledgers(self) -> LedgerClient:
        return present(self._ledgers, _NOT_STARTED)

    @property
    def space(self) -> None:
        """None: the disks are on other machines."""

    async def _start(self) -> None:
        shown = await load_credentials(self._runtime.disk, self._settings.credentials)
        store = await connect(self._settings.meta_url, self._runtime, secret=shown.secret)
        self._started.push_async_callback(store.close)
        hold = WriteHold()
        self._meta = HeldMeta(store, hold.over)
        self._ledgers = await open_ledgers(self._runtime, self._meta, self._started, credentials=shown, hold=hold)
        bookies = self._ledgers.context.directory.writable()
        await check_belongs(self._runtime, bookies, shown, setting="cluster.secret")
        if self._settings.name:
            holding = BackupHold(self._runtime, store, self._ledgers, self._settings.name)
            holding.start()
            self._started.push_async_callback(holding.close)

    def check_writable(self) -> None:
        found, needed = len(self.ledgers.context.directory.writable()), self._settings.bookies
        full = self.ledgers.full(Quorum(needed, 1, 1))
        if full is not None:
            raise full
        if found < needed:
            raise BookieUnavailableError(
                f"{found} bookies take entries, and a ledger needs {needed}", hint="start more bookies"
            )

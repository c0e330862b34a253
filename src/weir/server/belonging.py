"""Whether a node that starts is taken for one of its cluster: the bookies that are there already are asked.

Without it a wrong secret shows only when the first message is to be stored, far from the setting that is wrong."""

import asyncio
import logging
from collections.abc import Mapping

from weir.broker.peers.settings import PeerCredentials
from weir.model.errors import ConfigError, NetworkError, NotAuthenticatedError, WireError
from weir.model.ids import BookieId
from weir.runtime.interfaces import Runtime
from weir.runtime.proving import prove
from weir.wire.bookie_hello import MAX_HELLO_BYTES, PURPOSE
from weir.wire.frames import FrameSplitter
from weir.wire.metadata import BookieInfo
from weir.wire.proof import NONCE_BYTES, ClusterSecret, ProvingClient

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
#: A bookie that dies just then lets go of us as well; one that is there the next time and does it again means it.
_ATTEMPTS = 2
_PAUSE_S = 0.5


async def check_belongs(
    runtime: Runtime, bookies: Mapping[BookieId, BookieInfo], credentials: PeerCredentials, *, setting: str
) -> None:
    """ConfigError if bookies can be reached, and none of them takes this node for one of the cluster. `setting`:
    how the user named the secret."""
    secret = credentials.secret
    if secret is None:
        return
    refusing = list(bookies.values())
    for attempt in range(_ATTEMPTS):
        if attempt:
            await runtime.clock.sleep(_PAUSE_S)
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
    """Whether it does not know the secret that this node has; None if it cannot be asked."""
    try:
        connection = await runtime.net.connect(
            bookie.host, bookie.port, timeout_s=_TIMEOUT_S, tls=credentials.client_tls
        )
    except NetworkError as silent:
        log.debug("bookie %s cannot be asked: %s", bookie.bookie_id, silent)
        return None
    # Whichever bookie it is: a registration may be older than what listens there now.
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

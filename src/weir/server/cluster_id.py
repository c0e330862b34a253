"""The cluster's own id, in the metadata: made once, the same for all of its brokers and for good.

Kafka's clients and tools tell clusters apart by it. It is a random UUID in Kafka's form: 22 characters of URL-safe
base64 that do not begin with a dash, which tools would take for an option.
"""

from base64 import urlsafe_b64encode
from contextlib import suppress
from random import Random
from uuid import UUID

from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.check import check
from weir.model.errors import MetaConflictError
from weir.runtime.interfaces import Runtime


async def stored_cluster_id(meta: MetaStore, runtime: Runtime) -> str:
    """The id of the cluster that has this metadata; the first broker that asks makes it."""
    found = await meta.get(keys.CLUSTER_ID)
    if found is None:
        with suppress(MetaConflictError):  # another broker was faster
            await meta.put(keys.CLUSTER_ID, new_cluster_id(runtime.rng).encode(), expect=ABSENT)
        found = await meta.get(keys.CLUSTER_ID)
    check(found is not None, "the cluster's id was just put")
    return "" if found is None else found.value.decode()


def new_cluster_id(rng: Random) -> str:
    while True:
        text = urlsafe_b64encode(UUID(bytes=rng.randbytes(16), version=4).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text

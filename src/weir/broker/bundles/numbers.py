"""The number of a broker, by which protocols know it: given once, kept under its name, never another's."""

from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.errors import MetaConflictError, MetaUnavailableError
from weir.runtime import Runtime

_ATTEMPTS = 100
_RETRY_S = 0.1


async def number_of(meta: MetaStore, runtime: Runtime, broker_id: str) -> int:
    """The broker's number; the first that nobody has, if it has none yet. The first broker of all gets 0."""
    for attempt in range(_ATTEMPTS):
        try:
            found = await meta.get(keys.broker_number(broker_id))
            if found is not None:
                return int(found.value)
            number = await _take(meta)
            await meta.put(keys.broker_number(broker_id), str(number).encode(), expect=ABSENT)
            return number
        except MetaConflictError:
            continue
        except MetaUnavailableError:
            if attempt == _ATTEMPTS - 1:
                raise
            await runtime.clock.sleep(_RETRY_S)
    raise MetaConflictError(f"broker {broker_id} got no number: others take them all the time")


async def _take(meta: MetaStore) -> int:
    """The next number. One whose taking had an unknown outcome is nobody's."""
    found = await meta.get(keys.NEXT_BROKER_NUMBER)
    number = 0 if found is None else int(found.value)
    expect = ABSENT if found is None else found.version
    await meta.put(keys.NEXT_BROKER_NUMBER, str(number + 1).encode(), expect=expect)
    return number

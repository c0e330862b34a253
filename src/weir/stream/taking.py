"""Taking a stream over as its holder left it: nothing is read, and one thing is written."""

from weir.model.errors import WeirError
from weir.stream.coming import Taken
from weir.stream.context import StreamContext
from weir.stream.held_chain import HeldChain, may_name
from weir.stream.left import Left


def take_ahead(context: StreamContext, name: str, left: Left, leader: int) -> None:
    """Be its holder, in this leader epoch, before somebody opens it."""
    context.coming.take(name, _take_as_left(context, name, left, leader))


async def _take_as_left(context: StreamContext, name: str, left: Left, leader: int) -> Taken:
    """With the ledger that was made for it, if there is one. StreamFencedError if somebody changed it since."""
    spans, terminated = left.chain.spans, left.chain.terminated_at is not None
    writer = None if terminated else await context.coming.ledger(name, spans[-1].ledger_id if spans else None)
    opened = None if writer is None else writer.ledger_id
    now_ms = max(context.runtime.clock.wall_ms(), left.last_ms)
    try:
        chain = await HeldChain.take_as_left(context, name, left, leader=leader, opened=opened, now_ms=now_ms)
    except WeirError:
        if writer is not None:
            await writer.abandon()
            if not await may_name(context, name, writer.ledger_id):
                await context.ledgers.delete(writer.ledger_id)
        raise
    return Taken(chain, left, writer)

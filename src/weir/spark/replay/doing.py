"""A replay from its beginning to its end, or from where it was."""

from collections.abc import Callable

from weir.client.replays import find_replay, report
from weir.model.errors import ReplayStateError
from weir.model.replays import Replay, ReplayState
from weir.spark.replay.delivering import Delivery
from weir.spark.replay.selecting import drop_selection
from weir.spark.sql.cluster import WeirCluster


def go_on(place: WeirCluster, replay: Replay, select: Callable[[Replay], None], delivery: Delivery) -> Replay:
    """Until it is done. `select` keeps its messages, if that was not done before."""
    if replay.state is ReplayState.DONE:
        drop_selection(place, replay)
        return replay
    if replay.state is ReplayState.CANCELLED:
        raise ReplayStateError(f"replay {replay.id} was cancelled", hint="begin another one")
    if replay.state is ReplayState.SELECTING:
        select(replay)
        now = find_replay(place.access, replay.id)  # somebody else may have been faster
        replay = delivery.fix(now) if now.state is ReplayState.SELECTING else now
    return delivery.run(replay)


def cancel(place: WeirCluster, replay: Replay) -> Replay:
    """End it here; what was delivered stays."""
    found = report(place.access, replay, state=ReplayState.CANCELLED)
    drop_selection(place, replay)
    return found

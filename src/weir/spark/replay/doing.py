"""A replay from its beginning to its end, or from where it was."""

from collections.abc import Callable

from weir.client.kafka.cluster import Cluster
from weir.client.registry import topic_of
from weir.client.replays import all_replays, find_replay, report
from weir.model.errors import ReplayStateError
from weir.model.replays import Replay, ReplayState, is_selection
from weir.spark.replay.delivering import Delivery
from weir.spark.replay.requests import check_same_topics
from weir.spark.replay.selecting import drop_selection, is_picked, selection_topic
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster


def go_on(place: WeirCluster, replay: Replay, select: Callable[[Replay], None], delivery: Delivery) -> Replay:
    """Until it is done. `select` keeps its messages, if that was not done before."""
    if replay.state is ReplayState.DONE:
        drop_selection(place, replay)
        return replay
    if replay.state is ReplayState.CANCELLED:
        raise ReplayStateError(f"replay {replay.id} was cancelled", hint="begin another one")
    check_same_topics(place, replay)
    if replay.state is ReplayState.SELECTING:
        if not is_picked(place, replay):
            # For who began it alone: what was written by another role's sink would be there a second time.
            report(place.access, replay, state=ReplayState.SELECTING)
            try:
                select(replay)
            except Exception:
                # An earlier attempt, whose client was killed, may have ended meanwhile: its selection counts.
                if not is_picked(place, replay):
                    raise
            check_same_topics(place, replay)
        now = find_replay(place.access, replay.id)  # somebody else may have been faster
        replay = delivery.fix(now) if now.state is ReplayState.SELECTING else now
    return delivery.run(replay)


def sweep(place: WeirCluster) -> None:
    """Selections of replays that have ended: left by who was killed, or found no broker, in the last step."""
    with Cluster(connection(place.options)) as cluster:
        there = {topic for name in cluster.topics() if is_selection(topic := topic_of(name))}
    if there:
        for one in all_replays(place.access):
            if one.state in (ReplayState.DONE, ReplayState.CANCELLED) and selection_topic(one) in there:
                drop_selection(place, one)


def cancel(place: WeirCluster, replay: Replay) -> Replay:
    """End it here; what was delivered stays."""
    found = report(place.access, replay, state=ReplayState.CANCELLED)
    drop_selection(place, replay)
    return found

"""Positions that open transactions hold ready for consumer groups: in the groups' shards, durable with these."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from weir.broker.coordinator_shards import CoordinatorShard
from weir.model.errors import TooManyError
from weir.model.owned_names import full_name
from weir.model.positions import CommittedOffset
from weir.model.topics import TopicName
from weir.wire.snapshots.groups import decode_pending, encode_pending

_PENDING = "pending/"
#: Positions that one transaction may hold ready in one group.
_MOST = 100_000


@dataclass(slots=True)
class Pending:
    """What a producer's transaction will place. `round`: which of its transactions (`TransactionEnd`)."""

    round: int
    positions: dict[TopicName, CommittedOffset] = field(default_factory=dict)


class PendingPositions:
    """Of all groups of the shards that are here, by group and producer id."""

    def __init__(self) -> None:
        self._of: dict[CoordinatorShard, dict[str, dict[int, Pending]]] = {}

    def of(self, shard: CoordinatorShard, group: str) -> Mapping[int, Pending]:
        return self._groups(shard).get(group, {})

    def parts(self, shard: CoordinatorShard, group: str) -> Collection[TopicName]:
        """The partitions on which the group is about to move, or not."""
        return {part for pending in self.of(shard, group).values() for part in pending.positions}

    def put(
        self,
        shard: CoordinatorShard,
        group: str,
        producer_id: int,
        *,
        round: int,  # noqa: A002
        positions: Mapping[TopicName, CommittedOffset],
    ) -> None:
        """These, too."""
        known = self.of(shard, group).get(producer_id)
        merged = {**(known.positions if known is not None else {}), **positions}
        if len(merged) > _MOST:
            raise TooManyError(f"a transaction may move {_MOST} positions of {full_name(group)[:80]!r}")
        pending = Pending(max(round, known.round if known is not None else round), merged)
        self._groups(shard).setdefault(group, {})[producer_id] = pending
        shard.state.put(_key(group, producer_id), encode_pending(pending.round, merged))

    def delete(self, shard: CoordinatorShard, group: str, producer_id: int) -> None:
        """From the state; until it is durable that it is gone, it counts (`forget`)."""
        shard.state.delete(_key(group, producer_id))

    def forget(self, shard: CoordinatorShard, group: str, producer_id: int) -> None:
        groups = self._groups(shard)
        groups.get(group, {}).pop(producer_id, None)
        if not groups.get(group):
            groups.pop(group, None)

    def _groups(self, shard: CoordinatorShard) -> dict[str, dict[int, Pending]]:
        found = self._of.get(shard)
        if found is None:
            for other in [other for other in self._of if not other.alive]:
                del self._of[other]
            found = self._of[shard] = {}
            for key in shard.state.keys(_PENDING):
                producer_id, _, group = key.removeprefix(_PENDING).partition("/")
                of_round, positions = decode_pending(shard.state.get(key) or b"")
                # Where epochs are not kept, rounds of an earlier life say nothing.
                pending = Pending(of_round if shard.kept else 0, positions)
                found.setdefault(group, {})[int(producer_id)] = pending
            shard.on_death(lambda: self._lost(shard))
        return found

    def _lost(self, shard: CoordinatorShard) -> None:
        self._of.pop(shard, None)


def _key(group: str, producer_id: int) -> str:
    return f"{_PENDING}{producer_id}/{group}"

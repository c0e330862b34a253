"""Where a group shall be on each of its partitions, and putting it there."""

import re
from dataclasses import dataclass

from weir.cli.groups.find import AMQP, KAFKA, Found, Part, group_path
from weir.cli.values import parse_moment_ms
from weir.client.admin import AdminClient, join
from weir.model.errors import ConfigError, NotAllowedError
from weir.model.topics import TopicName
from weir.runtime.real import RealClock

#: Larger numbers are moments in milliseconds: no partition has had so many messages.
_MOST_OFFSET = 10**11


@dataclass(frozen=True, slots=True)
class Target:
    """One of these: an end, an offset, a moment, or a distance."""

    end: str = ""
    offset: int | None = None
    moment_ms: int | None = None
    shift: int | None = None

    @classmethod
    def parse(cls, to: str | None, shift: int | None) -> "Target":
        if to is None:
            return cls(shift=shift)
        if to in ("earliest", "latest"):
            return cls(end=to)
        if re.fullmatch(r"[0-9]+", to) and int(to) < _MOST_OFFSET:
            return cls(offset=int(to))
        try:
            return cls(moment_ms=parse_moment_ms(to, RealClock().wall_ms()))
        except ConfigError:
            raise ConfigError(
                f"{to!r} is no position", hint="write earliest, latest, an offset, 2030-01-31T12:00:00, or -1h"
            ) from None


async def planned(admin: AdminClient, group: Found, target: Target) -> list[tuple[Part, int]]:
    """Each partition with the offset that the group shall have there, within what is stored."""
    if group.kind == AMQP:
        raise NotAllowedError(
            f"{group.name} is a queue: what was taken from it is gone",
            hint="drop what waits with weir subscriptions skip, or purge the queue",
        )
    return [(part, await _wanted(admin, part, target)) for part in group.parts]


async def _wanted(admin: AdminClient, part: Part, target: Target) -> int:
    start, end = part.start or 0, part.end or 0
    if target.end:
        return start if target.end == "earliest" else end
    if target.moment_ms is not None:
        found = await admin.own("GET", f"{offsets_path(part.topic)}?time={max(0, target.moment_ms)}")
        return int(found["offset"])
    if target.offset is not None:
        return max(start, min(target.offset, end))
    here = part.position if part.position is not None else start
    return max(start, min(here + (target.shift or 0), end))


async def move(admin: AdminClient, group: Found, plan: list[tuple[Part, int]]) -> None:
    """All of them; NotAllowedError if the group cannot be moved now."""
    if group.kind == KAFKA:
        await _move_kafka(admin, group, plan)
        return
    for part, offset in plan:
        path = f"{offsets_path(part.topic)}/{join(group.subscription)}"
        await admin.own("POST", path, {"offset": offset})


async def _move_kafka(admin: AdminClient, group: Found, plan: list[tuple[Part, int]]) -> None:
    if group.members:
        raise NotAllowedError(
            f"group {group.name!r} has members ({group.members}), which would go on from where they are",
            hint="stop them, reset the group, and start them again",
        )
    positions = {str(part.topic): offset for part, offset in plan}
    failed = await admin.own("POST", group_path(group.name, "positions"), {"positions": positions})
    if failed:
        topic, why = next(iter(failed.items()))
        raise NotAllowedError(f"{len(failed)} of {len(plan)} partitions are not moved, {topic} among them: {why}")


def offsets_path(topic: TopicName) -> str:
    namespace = topic.namespace
    return join("offsets", "persistent", namespace.tenant, namespace.name, topic.local_with_partition)

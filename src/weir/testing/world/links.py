"""The simulated wires: how bytes fare from one node to another, and which ways are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class NetFaults:
    """How a link behaves from now on. Chances are per segment unless said otherwise, times in virtual seconds."""

    #: Every segment takes this, plus up to `jitter_s`.
    latency_s: float = 0.0002
    jitter_s: float = 0.0003
    #: Now and then a segment, and with it all behind it in its connection, is late by up to `spike_s`.
    spike_chance: float = 0.001
    spike_s: float = 0.05
    #: Bytes per second over all connections of the link; 0 for no limit.
    bandwidth: float = 0.0
    #: What was written at once arrives in pieces.
    split_chance: float = 0.1
    #: The connection is lost for both sides.
    reset_chance: float = 0.0
    #: Per attempt: a connect is refused though someone listens.
    refuse_chance: float = 0.0
    #: How much later than the other a side may learn that its connection is lost or its peer lost power.
    notice_s: float = 2.0
    #: A connection across a partition that lasts longer than this is lost.
    keepalive_s: float = 20.0


class Link:
    """One direction between two nodes."""

    __slots__ = ("blocked", "busy_until", "cut", "faults", "rng", "source", "target")

    def __init__(self, source: str, target: str, faults: NetFaults, rng: Random) -> None:
        self.source = source
        self.target = target
        self.faults = faults
        self.rng = rng
        self.blocked = False
        #: Counts how often it was blocked, so that a keepalive knows whether it is still the same outage.
        self.cut = 0
        self.busy_until = 0.0

    def arrival(self, now: float, size: int = 0) -> float:
        """When something sent now arrives."""
        faults, rng = self.faults, self.rng
        delay = faults.latency_s + faults.jitter_s * rng.random()
        if faults.spike_chance and rng.random() < faults.spike_chance:
            delay += faults.spike_s * rng.random()
        if faults.bandwidth:
            now = self.busy_until = max(now, self.busy_until) + size / faults.bandwidth
        return now + delay


class Links:
    """All links, and the knobs that scenarios turn: faults per link, per node or for all, and partitions."""

    def __init__(self, rng: Callable[[str], Random], note: Callable[[str, str, str], None]) -> None:
        self._rng = rng
        self._note = note
        self._links: dict[tuple[str, str], Link] = {}
        self._default = NetFaults()
        self._by_node: dict[str, NetFaults] = {}
        self._by_link: dict[tuple[str, str], NetFaults] = {}

    def _blocking_changed(self, link: Link) -> None:
        """The network tells the link's connections."""

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            rng = self._rng(f"net/{source}->{target}")
            link = self._links[source, target] = Link(source, target, self._faults_of(source, target), rng)
        return link

    def _faults_of(self, source: str, target: str) -> NetFaults:
        by_node = self._by_node.get(source) or self._by_node.get(target)
        return self._by_link.get((source, target)) or by_node or self._default

    def set_faults(
        self, faults: NetFaults | None, *, node: str | None = None, link: tuple[str, str] | None = None
    ) -> None:
        """Set the faults of one link (source, target), of all links of a node, or else of all. The most
        specific setting wins; None takes a setting back."""
        if link is not None:
            _set(self._by_link, link, faults)
        elif node is not None:
            _set(self._by_node, node, faults)
        else:
            self._default = faults or NetFaults()
        self._note("net", "net-faults", f"{node or link or 'all'} {faults}")
        for each in self._links.values():
            each.faults = self._faults_of(each.source, each.target)

    def block(self, source: str, target: str) -> None:
        """Let nothing from source arrive at target: a one-way partition."""
        link = self.link(source, target)
        if source != target and not link.blocked:
            self._note("net", "net-block", f"{source} {target}")
            link.blocked = True
            link.cut += 1
            self._blocking_changed(link)

    def unblock(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.blocked:
            self._note("net", "net-unblock", f"{source} {target}")
            link.blocked = False
            self._blocking_changed(link)

    def partition(self, *groups: Sequence[str]) -> None:
        """Cut every link between nodes of different groups, both ways."""
        for group in groups:
            for other in groups:
                if group is not other:
                    for source in group:
                        for target in other:
                            self.block(source, target)

    def heal(self) -> None:
        """Unblock every link."""
        for source, target in list(self._links):
            self.unblock(source, target)


def _set(settings: dict[_Key, NetFaults], key: _Key, faults: NetFaults | None) -> None:
    if faults is None:
        settings.pop(key, None)
    else:
        settings[key] = faults

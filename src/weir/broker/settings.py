"""What can be set about a broker.

What can be set about half messages.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HalfSettings:
    """One value for all topics of a broker."""

    #: Nobody is asked about a half message for so long, unless it says otherwise itself.
    recovery_s: float = 6.0
    #: Then a producer of its group is asked so often,
    interval_s: float = 30.0
    #: and so many times; after one more interval it is rolled back.
    checks: int = 15
    #: Half messages of a topic that are not decided, at most (about 300 bytes of memory each).
    most: int = 100_000
    #: How a half message was decided is remembered for so long after the last one of its ledger was.
    remember_s: float = 24 * 3600.0
    #: Look at the clock at least this often, since it may jump.
    tick_s: float = 1.0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One value for all topics of a broker."""

    #: Published bytes that are not stored yet, over all topics: above it `relax()` waits for those who use more
    #: than an equal share of it.
    in_flight_bytes: int = 128 * 1024 * 1024
    #: The most that one `next()` answers, so that one consumer with much credit does not keep the loop to itself.
    delivery_bytes: int = 1024 * 1024
    #: One read of what the tail no longer holds.
    read_bytes: int = 256 * 1024
    #: Wait so long after a read that failed.
    read_pause_s: float = 0.5
    #: Key-shared: messages that may wait for their own consumer while others are served past them.
    look_ahead: int = 20_000
    #: Deduplication: batches between two snapshots, which is what an opening topic scans at most.
    dedup_snapshot_every: int = 1000
    #: A producer name that sent nothing for so long is forgotten.
    dedup_forget_s: float = 6 * 3600.0
    #: Idempotent producers: stamped batches, or bytes of them, between two snapshots.
    stamps_snapshot_every: int = 1000
    stamps_snapshot_bytes: int = 32 * 1024 * 1024
    #: An idempotent producer that sent nothing to a topic for so long is forgotten there, and so are the oldest if
    #: a topic knows more than so many.
    stamps_forget_s: float = 24 * 3600.0
    stamps_most: int = 10_000
    #: How often retention, expiry and quotas are looked after.
    maintenance_s: float = 5.0
    #: How often topics that nobody has loaded are checked for messages that are retained no longer.
    idle_s: float = 600.0
    #: A topic that was not used for so long, and has nothing to do by itself, is unloaded; 0: never.
    unload_s: float = 300.0
    #: How often topics are checked for new policies and lost leases.
    sweep_s: float = 1.0
    #: Consumers per subscription, or queue; 0: any number.
    subscription_consumers: int = 10_000
    #: A subscription's dispatch rate may be used ahead by so many seconds.
    rate_burst_s: float = 1.0
    #: Messages of queues in memory, over all of them: above it publishers wait that use more than an equal share.
    queue_memory_bytes: int = 256 * 1024 * 1024
    half: HalfSettings = field(default_factory=HalfSettings)

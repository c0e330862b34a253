"""What balance aims at, and the bounds that keep it calm."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """Usage is a share of what one broker can do: 0.1 is a tenth of a broker.

    A broker further than `start` from the mean of those that share its work is evened out, and that is over when
    it is within `stop`: the gap between the two is what keeps measures that waver from moving anything.
    """

    start: float = 0.10
    stop: float = 0.04
    #: A broker that has so much to do is relieved even if the others have nearly as much.
    full: float = 0.90
    #: So much of its memory in use: it is given nothing more, and relieved.
    memory_full: float = 0.90
    #: What all moves from or to one broker in a round must gain together, or none of them is worth a pause.
    min_gain: float = 0.01
    #: A bundle that was moved stays for so long, whatever is measured; a drained broker's excepted.
    bundle_pause_s: float = 600.0
    #: A broker that gave or got a bundle is measured anew for so long before it gives or gets another.
    broker_pause_s: float = 60.0
    #: Moves of a round that even out: this many, or as many as there are brokers to even out, whichever is more,
    #: but no more than this share of the number of brokers: quick after a loss and slow while all is well.
    moves_per_round: int = 10
    moves_share: float = 0.5
    #: Of these, from one broker, and to one: an empty one gets its share bit by bit.
    moves_from_broker: int = 8
    moves_to_broker: int = 4
    #: Moves of a round away from drained brokers and from brokers that a namespace is not bound to.
    evictions_per_round: int = 200
    #: Splits of a round: this many, or this share of the number of brokers; and of one broker.
    splits_per_round: int = 10
    splits_share: float = 0.05
    splits_per_broker: int = 4
    #: A bundle above any of these is split, if it has two topics and its namespace has room for one more.
    split_usage: float = 0.30
    split_messages_per_s: float = 30_000.0
    split_bytes_per_s: float = 100e6
    split_topics: int = 1000
    bundles_per_namespace: int = 128
    #: Numbers of topics are evened out for brokers that are further from the mean than this share of it, and than
    #: so many topics, until they are within `count_stop` of it.
    count_start: float = 0.25
    count_stop: float = 0.15
    count_least: float = 3.0
    #: What a broker can do besides its CPU, for machines where the network is what ends first; 0: not known.
    broker_messages_per_s: float = 0.0
    broker_bytes_per_s: float = 0.0

    @property
    def band(self) -> float:
        """How far from the mean a move may bring any broker: half-way between the two thresholds, so that no move
        is the reason for the next."""
        return (self.start + self.stop) / 2

    def moves(self, brokers: int, uneven: int) -> int:
        """How many moves of a round even out, among so many brokers of which so many are far from their level."""
        return max(self.moves_per_round, min(uneven, int(self.moves_share * brokers)))

    def splits(self, brokers: int) -> int:
        """How many bundles are split in a round, among so many brokers."""
        return max(self.splits_per_round, int(self.splits_share * brokers))

"""What passes through all topics of a broker together, and which ones it passes: known without asking any."""

from weir.model.topics import TopicName

#: So many busy topics are remembered between two looks; of more, some are noticed at a later one.
MAX_BUSY = 2_000


class TopicsFlow:
    """Totals of one direction since the broker started. Each topic's own meter counts here, too."""

    __slots__ = ("busy", "bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        #: Topics through which something passed since somebody took them; None while nobody looks.
        self.busy: set[TopicName] | None = None

    def note(self, topic: TopicName, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        busy = self.busy
        if busy is not None and len(busy) < MAX_BUSY:
            busy.add(topic)

    def take_busy(self) -> set[TopicName]:
        """Those since the last time; from now on they are remembered."""
        busy, self.busy = self.busy, set()
        return busy or set()

    def forget_busy(self) -> None:
        """Nobody looks any more."""
        self.busy = None


class BrokerFlows:
    """Both directions: what was stored, and what consumers and readers were given."""

    __slots__ = ("given", "taken")

    def __init__(self) -> None:
        self.taken = TopicsFlow()
        self.given = TopicsFlow()

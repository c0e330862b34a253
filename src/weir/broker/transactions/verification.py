"""Which of their producers' transactions a topic has open, as their coordinators said before anything was stored.

A coordinator that is on this broker is asked at once. Any other is asked over the network; what the producer sends
meanwhile waits. A marker that comes while somebody is being asked makes the answer void, since it may be about the
transaction that the marker ends: then it is asked again, and the marker waits for that.

By their rounds (`TransactionEnd`) a marker that comes late is told from the one that is awaited. Of a transaction
that was open when this broker loaded the topic no round is known: then its coordinator has to confirm the marker.
"""

import asyncio

from weir.broker.ports import TransactionGate
from weir.model.batch import Stamp
from weir.model.errors import StreamClosedError, WeirError
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope


class _Question:
    """Under way to a coordinator. `void`: a marker came since it was asked."""

    __slots__ = ("answer", "void")

    def __init__(self) -> None:
        self.void = False
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class OpenRounds:
    """Of one topic."""

    def __init__(self, gate: TransactionGate, name: TopicName, tasks: TaskScope) -> None:
        self._gate = gate
        self._name = name
        self._tasks = tasks
        self._rounds: dict[int, int] = {}
        self._asked: dict[int, _Question] = {}

    def admit(self, stamp: Stamp) -> "asyncio.Future[None] | None":
        """Whether the producer's transaction may begin here: None if so; raises if not; a future that ends so or
        so if it has to be asked."""
        found = self._gate.admit(stamp, self._name)
        if isinstance(found, WeirError):
            raise found
        if found is not None:
            self._rounds[stamp.producer_id] = found
            return None
        asked = self._asked.get(stamp.producer_id)
        if asked is None:
            asked = self._asked[stamp.producer_id] = _Question()
            self._tasks.spawn(self._ask(asked, stamp), "ask about a transaction")
        return asked.answer

    async def _ask(self, question: _Question, stamp: Stamp) -> None:
        failure: WeirError | None = StreamClosedError(f"{self._name} is being closed")
        try:
            while True:
                question.void = False
                found = await self._gate.verify(stamp, self._name)
                if not question.void:
                    break
            self._rounds[stamp.producer_id] = found
            failure = None
        except WeirError as refused:
            failure = refused
        finally:
            del self._asked[stamp.producer_id]
            if failure is None:
                question.answer.set_result(None)
            else:
                question.answer.set_exception(failure)
                question.answer.exception()  # whoever waits gets it; perhaps nobody does any more

    async def answered(self, producer_id: int) -> None:
        """A marker came: what is being asked is asked again, and over before this returns."""
        while (question := self._asked.get(producer_id)) is not None:
            question.void = True
            await asyncio.wait([question.answer])

    def is_late(self, producer_id: int, marker_round: int) -> bool | None:
        """Whether a marker is of a transaction before the one that is open; None if that is not known here."""
        known = self._rounds.get(producer_id)
        return None if known is None else marker_round < known

    def ended(self, producer_id: int) -> None:
        """A marker is stored."""
        self._rounds.pop(producer_id, None)

"""A ledger that went to the lake is missed by nobody who looks at a data folder."""

from weir.datafolder.ledger_owners import Chart, Role
from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.model.ids import LedgerId
from weir.model.stream import Chain, LedgerFate, Segment, SegmentStore, Span
from weir.wire.stream import encode_chain


def test_ledgers_that_are_read_from_the_lake_are_not_looked_for() -> None:
    def span(number: int, fate: LedgerFate | None) -> Span:
        segment = None if fate is None else Segment(0, f"{number}-x.segment", 9, fate)
        return Span(LedgerId(number), 10 * number, 10 * number + 10, 5, 6, 7, 0, segment)

    spans = (span(1, LedgerFate.GONE), span(2, LedgerFate.GOING), span(3, LedgerFate.KEPT), span(4, None))
    chain = Chain(spans, stores=(SegmentStore("file:///lake"),))
    chart = Chart.of([Versioned(keys.stream("public/default/t"), encode_chain(chain), 1)])
    assert [chart.role(LedgerId(number)) for number in range(1, 5)] == [
        *[Role.UNUSED] * 2,
        *[Role.MESSAGES] * 2,
    ]

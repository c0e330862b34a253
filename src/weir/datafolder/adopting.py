"""What a damaged metadata store no longer knows and the ledgers themselves tell: topics without a record get
one, and ledgers with messages that belong to no topic any more become topics of their own, in the namespace
`public/salvaged`."""

from weir.datafolder.chart import LedgerUse, Role, topic_of_stream
from weir.datafolder.found import FoundLedger
from weir.datafolder.survey import FolderSurvey
from weir.meta import keys
from weir.meta.interfaces import Versioned
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.model.registry import SYSTEM_NAMESPACE, Namespace, Tenant, TopicRecord
from weir.model.stream import Chain, Span
from weir.model.topics import NamespaceName, TopicName
from weir.wire.metadata import encode_ledger
from weir.wire.registry import encode_namespace, encode_tenant, encode_topic
from weir.wire.stream import encode_chain

SALVAGED = NamespaceName("public", "salvaged")
#: Messages from before 2001 or after 2100 are none: what looks like them is something else.
_PLAUSIBLE_MS = range(978_307_200_000, 4_102_444_800_000)


def adopt(report: FolderSurvey, items: dict[str, Versioned], bookie_id: BookieId) -> None:
    """Complete the metadata, and name in the report what was adopted."""
    version = report.meta.revision + 1

    def put(key: str, value: bytes) -> None:
        items[key] = Versioned(key, value, version)

    gone = _deleted(report)
    for ledger_id, found in sorted(report.found.ledgers.items()):
        if ledger_id in report.chart.uses or ledger_id in gone:
            continue
        if ledger_id in report.chart.ledgers or not _holds_messages(found):
            continue
        stream = f"{SALVAGED}/ledger-{ledger_id}"
        chain = _chain(ledger_id, found)
        put(keys.stream(stream), encode_chain(chain))
        put(keys.ledger(ledger_id), encode_ledger(closed_ledger(ledger_id, found.runs[-1].last, bookie_id)))
        report.chart.chains[stream] = chain
        report.chart.uses[ledger_id] = LedgerUse(ledger_id, stream, Role.MESSAGES, chain.spans[0])
        report.adopted.append(f"persistent://{stream}: messages whose topic is not known any more")
    for topic, partitions in _without_record(report, items).items():
        put(keys.topic(topic), encode_topic(TopicRecord(topic, partitions)))
        if topic.namespace != SALVAGED:
            report.adopted.append(f"{topic}: its policies and properties are lost")
        if keys.namespace(topic.namespace) not in items:
            put(keys.namespace(topic.namespace), encode_namespace(Namespace(topic.namespace)))
        if keys.tenant(topic.namespace.tenant) not in items:
            put(keys.tenant(topic.namespace.tenant), encode_tenant(Tenant(topic.namespace.tenant)))


def closed_ledger(ledger_id: LedgerId, last: int, bookie_id: BookieId) -> LedgerMetadata:
    """A ledger with one copy that ends here."""
    return LedgerMetadata(
        ledger_id,
        Quorum(),
        (Fragment(EntryId(0), (bookie_id,)),),
        LedgerState.CLOSED,
        EntryId(last),
    )


def _deleted(report: FolderSurvey) -> set[int]:
    """Ledgers that were deleted, and whose bytes are not collected yet."""
    checkpoint = report.bookie.checkpoint
    if checkpoint is None:
        return set()
    return {ledger_id for ledger_id, _ in checkpoint.deleted}


def _holds_messages(found: FoundLedger) -> bool:
    """Whether its entries are batches, all of them, and follow one another."""
    runs = found.runs
    plausible = found.first_ms in _PLAUSIBLE_MS and found.last_ms in _PLAUSIBLE_MS
    return bool(runs) and plausible and all(run.base >= 0 and run.end > run.base for run in runs)


def _chain(ledger_id: LedgerId, found: FoundLedger) -> Chain:
    first = found.runs[0]
    begin = max(0, first.base - first.first)
    span = Span(ledger_id, begin, found.runs[-1].end, found.bytes, found.first_ms, found.last_ms)
    return Chain(spans=(span,), start_offset=first.base)


def _without_record(report: FolderSurvey, items: dict[str, Versioned]) -> dict[TopicName, int]:
    """Topics that have messages and no record, with their partitions as far as these are known."""
    found: dict[TopicName, int] = {}
    for stream, chain in report.chart.chains.items():
        topic = topic_of_stream(stream)
        if topic is None or chain.doomed is not None or topic.namespace == SYSTEM_NAMESPACE:
            continue
        if keys.topic(topic) in items:
            continue
        partitions = 0 if topic.partition is None else topic.partition + 1
        found[topic.base] = max(found.get(topic.base, 0), partitions)
    return found

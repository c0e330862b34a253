"""What Weir promises of partitions that lose messages on purpose: deleted beginnings, and compaction."""

from collections.abc import Sequence
from itertools import pairwise

from weir.testing.checking import Violation
from weir.testing.kafka.history import KafkaOp
from weir.testing.log_history import LogOpKind
from weir.testing.operations import grouped, of


def deleted_is_not_served(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Once the deletion of a beginning is answered, nobody gets anything of it any more: not from that broker,
    nor, in the end, from any."""
    promise = "nothing before the start of a partition is served"
    reads = grouped(of(ops, LogOpKind.READ, LogOpKind.CONTENT), lambda op: op.part)
    found = []
    for gone in of(ops, LogOpKind.DELETE):
        for op in reads.get(gone.part, []) if gone.ok else []:
            later = op.final or (op.host == gone.host and op.asked > gone.over)
            if later and op.offset < gone.offset:
                sentence = f"{op.client} got {op.part}@{op.offset}, and all before {gone.offset} was deleted"
                found.append(Violation(promise, sentence, (gone, op)))
                break
    return found


def only_deleted_is_gone(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A partition begins no later than somebody asked for."""
    promise = "nothing is lost that nobody deleted"
    asked = grouped(of(ops, LogOpKind.DELETE), lambda op: op.part)
    found = []
    for end in of(ops, LogOpKind.READ_ALL):
        most = max((op.offset for op in asked.get(end.part, [])), default=0)
        if end.start is not None and end.start > most:
            sentence = f"{end.part} begins at {end.start}, and only what is before {most} was to be deleted"
            found.append(Violation(promise, sentence, (end, *asked.get(end.part, []))))
    return found


def the_last_value_is_kept(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Who reads a compacted topic finds, of every key, the last value that was acknowledged, or a later one."""
    promise = "compaction keeps the last value of each key"
    puts = [op for op in of(ops, LogOpKind.PUT) if op.ok and op.offset >= 0]
    rows = grouped(of(ops, LogOpKind.ROW), lambda op: op.client)
    found = []
    for scan in of(ops, LogOpKind.SCANNED):
        newest = {op.key: op for op in rows.get(scan.client, [])}
        for put in puts:
            known = put.over < scan.asked and (scan.final or scan.host == put.host)
            there = newest.get(put.key)
            if known and (there is None or there.offset < put.offset):
                last = "nothing" if there is None else f"{there.payload}@{there.offset}"
                sentence = f"{scan.client} found {last} of {put.key}, whose value was {put.payload}@{put.offset}"
                found.append(Violation(promise, sentence, (put, scan, *([there] if there else []))))
                break
    return found


def rows_stay_where_they_were(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What compaction leaves keeps its key, its offset and so its order."""
    promise = "compaction moves nothing"
    put = {op.payload: op for op in of(ops, LogOpKind.PUT)}
    acknowledged = {op.payload: op for op in put.values() if op.ok and op.offset >= 0}
    found = []
    for rows in grouped(of(ops, LogOpKind.ROW), lambda op: op.client).values():
        for row in rows:
            was = acknowledged.get(row.payload)
            if row.payload in put and put[row.payload].key != row.key:
                sentence = f"{row.payload} is {row.key}'s, and was sent as {put[row.payload].key}'s"
                found.append(Violation(promise, sentence, (put[row.payload], row)))
            elif was is not None and was.offset != row.offset:
                sentence = f"{row.payload} stands at {row.offset}, and was acknowledged at {was.offset}"
                found.append(Violation(promise, sentence, (was, row)))
        for one, two in pairwise(rows):
            if two.offset <= one.offset:
                sentence = f"{two.payload}@{two.offset} came after {one.payload}@{one.offset}"
                found.append(Violation(promise, sentence, (one, two)))
    return found

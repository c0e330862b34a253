"""Codecs of what lies on disks and in other stores, with valid samples, for the fuzz tests."""

import json
from base64 import b64encode
from random import Random
from struct import pack_into

from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, MovedFrom, Origin, Prepared, Stamp
from weir.model.errors import WireError
from weir.model.ids import LedgerId
from weir.model.messages import Message
from weir.model.stream import Chain, LedgerFate, Segment, SegmentStore, Span
from weir.testing.codecs.fuzzing import Codec, reseal_rest
from weir.testing.codecs.samples import sample_entry, sample_id
from weir.wire import batch, bookie_files, delayed_batches, end_record, etcd, metadata_log, segment, stream
from weir.wire import stream as state
from weir.wire.checksum import crc32c
from weir.wire.formats import marker, messages

# --- a bookie's files ---------------------------------------------------------------------------------------


def sample_record(dice: Random) -> bytes:
    """A journal record without its padding."""
    kind = dice.choice(tuple(bookie_files.RecordKind))
    body = {
        bookie_files.RecordKind.START: lambda: bookie_files.encode_start(
            bookie_files.Start(dice.getrandbits(64), 4096)
        ),
        bookie_files.RecordKind.ENTRIES: lambda: b"".join(sample_entry(dice) for _ in range(dice.randrange(1, 4))),
    }.get(
        kind, lambda: bookie_files.encode_ledgers([LedgerId(sample_id(dice)) for _ in range(dice.randrange(3))])
    )()
    header = bookie_files.RecordHeader(kind, dice.getrandbits(64), 7, 4096, 0, len(body), crc32c(body))
    return bookie_files.encode_header(header) + body


def decode_record(data: bytes) -> object:
    header = bookie_files.decode_header(data)
    body = data[bookie_files.HEADER_BYTES :]
    bookie_files.verify_body(header, body)
    if header.kind is bookie_files.RecordKind.START:
        return bookie_files.decode_start(body)
    if header.kind is bookie_files.RecordKind.ENTRIES:
        return list(bookie_files.split_entries(body))
    return bookie_files.decode_ledgers(body)


_BODY_LENGTH_AT = 44


def reseal_record(data: bytearray) -> None:
    """Length and checksum of the body, then the checksum of the header."""
    if len(data) >= bookie_files.HEADER_BYTES:
        body = memoryview(data)[bookie_files.HEADER_BYTES :]
        pack_into("<II", data, _BODY_LENGTH_AT, len(body), crc32c(body))
        pack_into("<I", data, 0, crc32c(memoryview(data)[4 : bookie_files.HEADER_BYTES]))


def sample_index_head(dice: Random) -> bytes:
    runs = b"".join(
        bookie_files.pack_run(sample_id(dice), 0, 9, 10 * n, 10, 0, 1000, dice.choice((-1, 8)))
        for n in range(dice.randrange(4))
    )
    return bookie_files.encode_head(runs, rows=dice.randrange(1000), log_bytes=dice.getrandbits(40))[:512]


def decode_index_head(data: bytes) -> object:
    return bookie_files.decode_runs(bookie_files.entrylog_decode_header(data), data[bookie_files.HEADER_BYTES :])


def reseal_index_head(data: bytearray) -> None:
    if len(data) >= bookie_files.HEADER_BYTES:
        pack_into("<I", data, 0, crc32c(memoryview(data)[4 : bookie_files.HEADER_BYTES]))


def sample_checkpoint(dice: Random) -> bytes:
    return bookie_files.encode_checkpoint(
        bookie_files.Checkpoint(
            dice.getrandbits(64),
            bookie_files.Position(dice.getrandbits(64), 4096, dice.getrandbits(64)),
            dice.getrandbits(20),
            tuple(LedgerId(sample_id(dice)) for _ in range(dice.randrange(3))),
            tuple((LedgerId(sample_id(dice)), n) for n in range(dice.randrange(3))),
            tuple(range(dice.randrange(3))),
            dice.randbytes(dice.randrange(20)),
        )
    )


def sample_end_record(dice: Random) -> bytes:
    return end_record.encode_end_record(end_record.EndRecord(*(dice.getrandbits(64) for _ in range(6))))


# --- metadata -----------------------------------------------------------------------------------------------

_FILE_ID = 77


def sample_meta_record(dice: Random) -> bytes:
    value = dice.choice((None, dice.randbytes(dice.randrange(30))))
    return metadata_log.encode_record(
        _FILE_ID, 0, dice.choice(("/weir/a", "/ä")), value, revision=5, durable=4, leased=dice.random() < 0.5
    )


def decode_meta_record(data: bytes) -> object:
    metadata_log.find_record(data, 0, _FILE_ID)
    return metadata_log.decode_record(data, 0, _FILE_ID)


def reseal_meta_record(data: bytearray) -> None:
    if len(data) >= 8:
        seed = crc32c(_FILE_ID.to_bytes(8, "little") + bytes(8))
        pack_into("<I", data, 4, crc32c(memoryview(data)[8:], seed))


def sample_meta_header(dice: Random) -> bytes:
    header = metadata_log.FileHeader(dice.getrandbits(64), dice.getrandbits(64), dice.getrandbits(64))
    return metadata_log.encode_header(metadata_log.LOG_MAGIC, header)


def sample_etcd(dice: Random) -> bytes:
    """A line of a watch stream."""
    key = b64encode(b"/weir/" + dice.randbytes(2).hex().encode()).decode()
    kv = {"key": key, "value": b64encode(dice.randbytes(6)).decode(), "mod_revision": str(dice.getrandbits(40))}
    event = {"type": dice.choice(("PUT", "DELETE")), "kv": kv}
    fields = {"header": {"revision": "7"}, "events": [event], "created": dice.random() < 0.5}
    return json.dumps({"result": fields}).encode() + b"\n"


def decode_etcd(data: bytes) -> object:
    return [etcd.decode_watch(line) for line in etcd.JsonLines(4096).feed(data)] + [etcd.decode_failure(500, data)]


def sample_etcd_range(dice: Random) -> bytes:
    kv = {"key": b64encode(b"/weir/x").decode(), "mod_revision": str(dice.getrandbits(40))}
    return json.dumps({"header": {"revision": "7"}, "kvs": [kv] * dice.randrange(3), "more": True}).encode()


# --- streams ------------------------------------------------------------------------------------------------


_STORED_FLAGS = (
    BatchFlags.RELEASED | BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL | BatchFlags.ABORT | BatchFlags.HIDDEN
)


def sample_batch(dice: Random) -> bytes:
    value = Batch(
        base_offset=dice.getrandbits(40),
        count=dice.randrange(1, 1000),
        format=dice.choice(tuple(BatchFormat)),
        append_ms=dice.getrandbits(40),
        payload=dice.randbytes(20),
        flags=dice.choice((BatchFlags.NONE, BatchFlags.RELEASED, _STORED_FLAGS)),
        origin=dice.choice((None, Origin("producer-ö", 5), MovedFrom(6), Prepared("group-ö", 7, 8))),
        held=dice.choice((None, HeldId(3, 4))),
        stamp=dice.choice((None, Stamp(1 << 40, 7, 9))),
    )
    return b"".join(batch.encode_batch(value))


def sample_state(dice: Random) -> bytes:
    values = (None, b"", b"value", b"value" * 400)
    changes = {f"k{n}": dice.choice(values) for n in range(dice.randrange(4))}
    return state.encode_changes(changes, dice.choice((state.PLAIN, state.DEFLATED)))


def sample_chain(dice: Random) -> bytes:
    copies = (None, Segment(0, "7-ä.segment", dice.getrandbits(40), dice.choice(list(LedgerFate))))
    spans = tuple(
        Span(LedgerId(n), 10 * n, 10 * n + 10, 5, 6, 7, dice.randrange(3), dice.choice(copies))
        for n in range(dice.randrange(3))
    )
    stores = (SegmentStore("s3://lake/ä", {"s3.region": "x"}),)
    return stream.encode_chain(Chain(spans, properties={"owner": "ä"}, epoch=dice.randrange(9), stores=stores))


def sample_segment(dice: Random) -> bytes:
    encoder = segment.SegmentEncoder(LedgerId(7), 0)
    pieces = [*encoder.begin()]
    for offset in range(dice.randrange(4)):
        stored = Batch(offset, 1, BatchFormat.PULSAR, 5, dice.randbytes(9))
        pieces += encoder.add(b"".join(map(bytes, batch.encode_batch(stored))))
    return b"".join(map(bytes, [*pieces, *encoder.end()]))


def decode_segment(data: bytes) -> object:
    index = segment.decode_index(data[-segment.index_bytes(data[-segment.END_BYTES :]) :], len(data))
    found = [data[block.position : block.position + block.length] for block in index.blocks]
    if not all(map(segment.is_whole, index.blocks, found)):
        raise WireError("a block is damaged")
    return index, list(map(segment.decode_block, found))


def sample_held(dice: Random) -> bytes:
    return delayed_batches.encode_held(
        dice.getrandbits(dice.choice((42, 63))), batch.decode_batch(sample_batch(dice))
    )


def sample_holding_record(dice: Random) -> bytes:
    entries, messages, size_bytes, gone = (dice.getrandbits(40) for _ in range(4))
    done = dice.randbytes(dice.randrange(20))
    record = delayed_batches.HoldingRecord(
        dice.randrange(9), 5, 60, dice.random() < 0.5, entries, messages, size_bytes, gone, done
    )
    return delayed_batches.encode_record(record)


def sample_messages(dice: Random) -> bytes:
    return messages.encode_messages(
        [
            Message(
                dice.choice((None, b"", b"key")),
                dice.choice((None, dice.randbytes(dice.randrange(30)))),
                [("name-ä", dice.choice((None, dice.randbytes(3)))) for _ in range(dice.randrange(3))],
                dice.choice((None, 5)),
                dice.getrandbits(40),
                dice.choice((None, b"order")),
                dice.choice((None, ("amqp", dice.randbytes(4)))),
            )
            for _ in range(dice.randrange(4))
        ]
    )


FILE_CODECS: list[Codec] = [
    Codec("journal record", sample_record, decode_record, reseal_record),
    Codec("index head", sample_index_head, decode_index_head, reseal_index_head),
    Codec("checkpoint", sample_checkpoint, bookie_files.decode_checkpoint, reseal_rest),
    Codec("end record", sample_end_record, end_record.decode_end_record),
    Codec(
        "ledgers in doubt",
        lambda dice: bookie_files.encode_doubtful([LedgerId(sample_id(dice))]),
        bookie_files.decode_doubtful,
    ),
    Codec("metadata record", sample_meta_record, decode_meta_record, reseal_meta_record),
    Codec(
        "metadata header",
        sample_meta_header,
        lambda data: metadata_log.decode_header(metadata_log.LOG_MAGIC, data),
    ),
    Codec("etcd stream", sample_etcd, decode_etcd),
    Codec("etcd answer", sample_etcd_range, etcd.decode_range),
    Codec("stored batch", sample_batch, batch.decode_batch),
    Codec("messages", sample_messages, messages.decode_messages),
    Codec("transaction marker", lambda dice: marker.encode_marker(dice.getrandbits(62)), marker.decode_marker),
    Codec(
        "held batch",
        sample_held,
        lambda data: (delayed_batches.peek_held(data), delayed_batches.decode_held(data)),
    ),
    Codec("holding record", sample_holding_record, delayed_batches.decode_record),
    Codec(
        "progress of releases",
        lambda dice: delayed_batches.encode_covered(dice.getrandbits(50)),
        delayed_batches.decode_covered,
    ),
    Codec("stream state", sample_state, state.decode_changes),
    Codec("stream chain", sample_chain, stream.decode_chain),
    Codec("segment", sample_segment, decode_segment),
]

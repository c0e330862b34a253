"""How fast stored record batches become Arrow: rows per second on one core, per compression and size."""

import sys
import time

from weir.spark.records.decoder import BatchTable, Decoder, all_of
from weir.wire.kafka.record_batch import HEADER_BYTES, NO_STAMP, Compression, sealed
from weir.wire.kafka.records import Record, encode_record

_RUNS = 7


def compressed(kind: Compression, body: bytes) -> bytes:
    from cramjam import gzip, lz4, snappy, zstd

    match kind:
        case Compression.NONE:
            return body
        case Compression.GZIP:
            return bytes(gzip.compress(body))
        case Compression.SNAPPY:
            return bytes(snappy.compress_raw(body))
        case Compression.LZ4:
            return bytes(lz4.compress(body))
        case Compression.ZSTD:
            return bytes(zstd.compress(body))


def batch_of(rows: int, value_bytes: int, kind: Compression, *, headers: bool = False) -> bytes:
    """Values that compress to about a half, as records of events do."""
    extra = [(b"trace", b"0123456789abcdef")] if headers else []
    records = [
        Record(
            i,
            1000 + i,
            str(i).encode(),
            (f"{i * 2654435761 % 2**32:08x}" * value_bytes).encode()[:value_bytes],
            extra,
        )
        for i in range(rows)
    ]
    body = compressed(kind, b"".join(encode_record(record, 1000) for record in records))
    return sealed(
        body,
        base_offset=0,
        attributes=kind,
        last_offset_delta=rows - 1,
        times=(1000, 1000 + rows),
        stamp=NO_STAMP,
        records=rows,
    )


def measure(rows: int, value_bytes: int, per_batch: int, kind: Compression, *, headers: bool) -> float:
    """Rows per second, the median run."""
    one = batch_of(per_batch, value_bytes, kind, headers=headers)
    data = b"".join((at * per_batch).to_bytes(8, "big") + one[8:] for at in range(rows // per_batch))
    assert len(one) > HEADER_BYTES
    decoder = Decoder("orders", 0, headers=headers)
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        table = BatchTable(data)
        found = sum(batch.num_rows for batch in decoder.decode(table, 0, rows, all_of(table)))
        times.append(time.perf_counter() - began)
        assert found == rows
    return rows / sorted(times)[_RUNS // 2]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    print(f"{'values':>8} {'per batch':>10} {'compression':>12} {'headers':>8} {'M rows/s':>9}")
    for value_bytes, per_batch, kind, headers in (
        (100, 1000, Compression.NONE, False),
        (100, 1000, Compression.NONE, True),
        (100, 10, Compression.NONE, False),
        (100, 1, Compression.NONE, False),
        (1000, 100, Compression.NONE, False),
        *((100, 1000, kind, False) for kind in list(Compression)[1:]),
    ):
        rate = measure(rows, value_bytes, per_batch, kind, headers=headers)
        print(f"{value_bytes:>8} {per_batch:>10} {kind.name:>12} {headers!s:>8} {rate / 1e6:>9.2f}")


if __name__ == "__main__":
    main()

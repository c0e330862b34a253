"""Keys erased from a table of the lake, without brokers and Spark: rows a second that are looked at.

    python -m bench.micro_lake_upkeep [--rows 5000000] [--tombstones 1000]

`one user`: all keys that are erased have rows in one file. `everywhere`: they have rows in every file, and each is
written anew.
"""

import argparse
import json
import tempfile
import time
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file

from weir.model.topics import TopicName
from weir.spark.lake.catalog import Definition
from weir.spark.lake.export import LocalJobs
from weir.spark.lake.parquet import topic_schema
from weir.spark.lake.table import OFFSETS, LakeTable, open_table
from weir.spark.lake.upkeep import Upkeep

_FILES = 20
_DAY_US = 1_700_000_000_000_000


def _rows(
    schema: pa.Schema, keys: "np.ndarray[tuple[int], np.dtype[np.int64]]", first: int, value: bytes | None
) -> pa.Table:
    count = len(keys)
    columns = {
        "key": pa.array([b"user-%012d" % key for key in keys.tolist()], pa.binary()),
        "value": pa.array([value] * count, pa.binary()),
        "partition": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(np.arange(first, first + count)),
        "timestamp": pa.array(np.full(count, _DAY_US), pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(count, np.int32)),
        "headers": pa.nulls(count, schema.field("headers").type),
        "protocol": pa.array(["kafka"] * count),
    }
    return pa.table({field.name: columns[field.name].cast(field.type) for field in schema})


def _add(found: LakeTable, rows: pa.Table, said: dict[str, str]) -> None:
    path = f"{found.location}/data/{uuid4().hex}.parquet"
    with found.table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream, compression="zstd", row_group_size=128 * 1024)
    file = parquet_file_to_data_file(found.table.io, found.table.metadata, path)
    with (
        found.table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=said).fast_append() as append,
    ):
        append.append_data_file(file)


def _table(folder: str, rows: int, tombstones: int, *, everywhere: bool) -> tuple[LakeTable, Definition]:
    definition = Definition(f"file://{folder}/lake", f"sqlite:///{folder}/catalog.db")
    found = open_table(TopicName.parse("users"), definition, topic_schema(None), "1")
    schema, each = found.arrow_schema, rows // _FILES
    random = np.random.default_rng(1)
    for at in range(_FILES):
        keys = random.integers(0, rows, each) if everywhere else np.arange(at * each, (at + 1) * each)
        said = {OFFSETS: json.dumps({"0": (at + 1) * each})}
        _add(found, _rows(schema, keys, at * each, b"v" * 100), said)
    gone = random.integers(0, rows, tombstones) if everywhere else np.arange(tombstones)
    said = {OFFSETS: json.dumps({"0": rows + tombstones})}
    _add(found, _rows(schema, gone, rows, None), said)
    return found, definition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tombstones", type=int, default=1000)
    given = parser.parse_args()
    for name, everywhere in (("one user", False), ("everywhere", True)):
        with tempfile.TemporaryDirectory() as folder:
            found, definition = _table(folder, given.rows, given.tombstones, everywhere=everywhere)
            began, cpu = time.perf_counter(), time.process_time()
            erased = Upkeep(found, definition, LocalJobs()).erase_keys()
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            print(
                f"{name}: {given.rows} rows, {given.tombstones} tombstones, {erased} rows erased: "
                f"{took:.2f} s, {cpu:.2f} s of CPU, {given.rows / took:.0f} rows/s"
            )


if __name__ == "__main__":
    main()

"""`weir up` on a disk with flipped bytes, as official clients of both protocols see it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

from weir.testing.processes.both_clients import Kafka, receive, subscribe
from weir.testing.processes.up import UpProcess, environment

COUNT, DAMAGED, ACKED = 120, 70, 30


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    weir = UpProcess(tmp_path)
    yield weir.start()
    weir.close()


def _flip(folder: Path, text: bytes) -> None:
    """One bit of the one place where the entry logs have this text."""
    for path in sorted((folder / "bookie" / "logs").glob("*.log")):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        if at >= 0:
            data[at] ^= 4
            path.write_bytes(data)
            return
    raise AssertionError(f"{text!r} is in no entry log")


def _flip_pages(folder: Path) -> None:
    for path in (folder / "bookie" / "logs").glob("*.idx"):
        data = bytearray(path.read_bytes())
        data[4096 + 60] ^= 1
        path.write_bytes(data)


def _stats(up: UpProcess, topic: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{up.http_url}/admin/v2/persistent/public/default/{topic}/stats") as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _verify(folder: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "weir.cli.main", "bookie", "verify", str(folder / "bookie"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    return done.returncode, json.loads(done.stdout)


def test_one_flipped_byte_costs_one_entry_and_everything_else_goes_on(up: UpProcess) -> None:
    kafka = Kafka(up.kafka)
    for first in range(0, COUNT, 10):
        kafka.send("k", [{"value": b"kafka %d;" % n} for n in range(first, first + 10)])
    client = pulsar.Client(up.pulsar_url)
    consumer = subscribe(client, "p")
    producer = client.create_producer("p", batching_enabled=False)
    for n in range(COUNT):
        producer.send(b"pulsar %d;" % n)
    receive(consumer, ACKED)
    client.close()
    assert up.stop() == 0
    for text in (b"pulsar %d;" % DAMAGED, b"kafka %d;" % DAMAGED):
        _flip(up.data, text)
    _flip_pages(up.data)
    code, verified = _verify(up.data)
    assert code == 1
    entries = [(d["ledger_id"], d["entry_id"]) for d in verified["damages"] if d["entry_id"] is not None]
    assert len(entries) == 2
    up.start()

    client = pulsar.Client(up.pulsar_url)
    client.create_producer("p", batching_enabled=False).send(b"writes go on")
    consumer = subscribe(client, "p")
    rest = [b"pulsar %d;" % n for n in range(ACKED, COUNT) if n != DAMAGED]
    assert [m.data() for m in receive(consumer, len(rest) + 1)] == [*rest, b"writes go on"]
    reader = client.create_reader("p", pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(30_000).data())
    assert read == [*(b"pulsar %d;" % n for n in range(COUNT) if n != DAMAGED), b"writes go on"]
    client.close()

    assert kafka.send("k", [{"value": b"writes go on"}]) == [COUNT]
    whole = [n for n in range(COUNT) if n // 10 != DAMAGED // 10]  # the batch that it was in
    found = [(m.offset(), m.value()) for m in kafka.read("k", len(whole) + 1)]
    assert found == [*((n, b"kafka %d;" % n) for n in whole), (COUNT, b"writes go on")]
    inside = kafka.read("k", 1, offset=DAMAGED)
    assert inside[0].offset() == DAMAGED // 10 * 10 + 10
    kafka.close()

    stats = _stats(up, "p")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0, "the cursor has moved across"
    lost = [*stats["lostEntries"], *_stats(up, "k-partition-0")["lostEntries"]]
    assert sorted((each["ledgerId"], each["firstEntry"]) for each in lost) == sorted(entries)
    assert (stats["lostEntries"][0]["firstOffset"], stats["lostEntries"][0]["endOffset"]) == (DAMAGED, DAMAGED + 1)
    with urllib.request.urlopen(f"{up.http_url}/metrics") as answer:
        metrics = answer.read().decode()
    for line in ("weir_damaged_entries{} 2", "weir_skipped_entries{} 2"):
        assert line in metrics
    for ledger, entry in entries:
        assert up.log.count(f"entry {entry} of ledger {ledger} cannot be read here") == 1, "said once"

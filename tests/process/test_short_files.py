"""`weir up` on files that someone cut short: it refuses, says what is missing, and goes on with --accept-loss."""

import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from weir.model.errors import WireError
from weir.runtime.loss_records import end_records
from weir.testing.processes.up import UpProcess
from weir.wire.bookie_files import HEADER_BYTES, decode_header

pytestmark = pytest.mark.process

MESSAGES = 50


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path)
    yield process
    process.close()


def produce(up: UpProcess, topic: str, count: int = MESSAGES) -> None:
    client = pulsar.Client(up.pulsar_url)
    try:
        producer = client.create_producer(topic)
        for n in range(count):
            producer.send_async(f"message {n}".encode(), callback=None)
        producer.flush()
    finally:
        client.close()


def receive(up: UpProcess, topic: str, count: int) -> list[str]:
    client = pulsar.Client(up.pulsar_url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [reader.read_next(30_000).data().decode() for _ in range(count)]
    finally:
        client.close()


def wait_for_end(path: Path, beyond: int) -> None:
    """Until the end record says that its log reaches further than `beyond`."""
    deadline = time.monotonic() + 60
    while (end := max(end_records(path.read_bytes())[0], default=None)) is None or end.end <= beyond:
        assert time.monotonic() < deadline, f"{path} stays at {end}"
        time.sleep(0.005)


def records_end(journal: Path) -> int:
    """Where the records of a journal file end."""
    at = 0
    with journal.open("rb") as file:
        while True:
            file.seek(at)
            try:
                at = decode_header(file.read(HEADER_BYTES)).end
            except WireError:
                return at


@pytest.mark.parametrize("zeros", [False, True], ids=["cut", "zeros"])
def test_metadata_cut_short_is_refused_and_accepted(up: UpProcess, zeros: bool) -> None:
    up.start()
    produce(up, "first")
    log = next((up.data / "meta").glob("log-*"))
    keep = log.stat().st_size
    produce(up, "second")
    wait_for_end(up.data / "meta" / "end", keep + 10)
    up.kill()
    whole = log.read_bytes()
    log.write_bytes(whole[: keep + 10] + (bytes(len(whole) - keep - 10) if zeros else b""))
    said = up.refused()
    assert str(log) in said
    assert "acknowledged changes" in said
    assert "--accept-loss" in said
    up.options = ("--accept-loss",)
    up.start()
    assert "given up, as --accept-loss says" in up.log
    assert receive(up, "first", MESSAGES) == [f"message {n}" for n in range(MESSAGES)]
    produce(up, "second", 3)
    assert receive(up, "second", 3) == ["message 0", "message 1", "message 2"]
    assert up.stop() == 0
    up.options = ()
    up.start()
    assert receive(up, "second", 3) == ["message 0", "message 1", "message 2"]
    assert (up.data / "meta" / "accepted-losses").read_text().count("\n") == 1


def test_metadata_that_knows_less_than_the_disk_is_refused_even_without_its_end_record(up: UpProcess) -> None:
    up.start()
    log = next((up.data / "meta").glob("log-*"))
    keep = log.stat().st_size
    produce(up, "first")
    up.kill()
    (up.data / "meta" / "end").unlink()
    log.write_bytes(log.read_bytes()[:keep])
    said = up.refused()
    assert "the disk holds ledger" in said
    assert "--accept-loss" in said
    up.options = ("--accept-loss",)
    up.start()
    produce(up, "first", 2)
    assert receive(up, "first", 2) == ["message 0", "message 1"]


@pytest.mark.parametrize("zeros", [False, True], ids=["cut", "zeros"])
def test_a_journal_cut_short_is_refused_and_accepted(up: UpProcess, zeros: bool) -> None:
    up.start()
    produce(up, "first")
    journal = min((up.data / "bookie" / "journal").glob("*.journal"))
    keep = records_end(journal)
    produce(up, "first")
    wait_for_end(up.data / "bookie" / "journal-end", keep)
    up.kill()
    with journal.open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(keep)
        if zeros:
            file.truncate(size)
    said = up.refused()
    assert f"{journal} at offset {keep}" in said
    assert "--accept-loss" in said
    up.options = ("--accept-loss",)
    up.start()
    assert "given up, as --accept-loss says" in up.log
    assert receive(up, "first", MESSAGES) == [f"message {n}" for n in range(MESSAGES)]
    produce(up, "first", 1)
    assert up.stop() == 0

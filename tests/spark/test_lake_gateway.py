"""Files of a bucket as Spark's reader asks for them, while the store is killed: its bytes, or an error."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from weir.model.errors import LakeError
from weir.spark.lake import catalog
from weir.spark.lake.catalog import PatientReads
from weir.spark.lake.webhdfs import StoreGateway, file_behind
from weir.testing.processes.s3 import S3Server

AWAY = OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7")


class Clock:
    """Of a store that comes back at a moment; time passes as one sleeps."""

    def __init__(self, back_s: float) -> None:
        self.now_s, self.back_s, self.asked = 0.0, back_s, 0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self) -> str:
        self.asked += 1
        if self.now_s < self.back_s:
            raise AWAY
        return "bytes"


def test_a_store_that_comes_back_in_time_is_waited_for() -> None:
    clock = Clock(back_s=catalog.STORE_PATIENCE_S - 1)
    patient = PatientReads("s3://lake", now=clock.now, sleep=clock.sleep)
    assert patient(clock.read) == "bytes"
    assert patient.trouble() is None


def test_reads_of_a_store_that_stays_away_wait_together_and_not_one_after_the_other() -> None:
    clock = Clock(back_s=10 * catalog.STORE_PATIENCE_S)
    patient = PatientReads("s3://lake", now=clock.now, sleep=clock.sleep)
    with pytest.raises(LakeError, match="s3://lake, does not answer"):
        patient(clock.read)
    waited, asked = clock.now_s, clock.asked
    assert waited == catalog.STORE_PATIENCE_S
    with pytest.raises(LakeError):
        patient(clock.read)
    assert (clock.now_s, clock.asked) == (waited, asked + 1)
    assert patient.trouble() is not None
    clock.now_s = clock.back_s
    assert patient(clock.read) == "bytes"
    assert patient.trouble() is None


def test_what_is_wrong_with_one_file_is_said_at_once() -> None:
    def read() -> None:
        raise FileNotFoundError("no such key")

    with pytest.raises(FileNotFoundError):
        PatientReads("s3://lake")(read)


def test_names_that_mean_something_to_others_are_found_behind_an_address() -> None:
    gateway = StoreGateway()
    with closing(gateway):
        for name in ("s3://lake/a b%20+é[1]{x}.json.gz", "s3://lake/plain"):
            (address,) = gateway.paths([name], {"s3.region": "us-east-1"}, ["17-3"])
            assert file_behind(address) == name
            assert address.endswith(".gz") == name.endswith(".gz")
            found = gateway._find(urlsplit(address).path)
            assert found is not None
            assert found[1] == name


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    with closing(server), pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.mark.process
def test_a_store_that_is_killed_gives_an_error_or_a_file_that_ends_too_early_and_no_other_bytes(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "STORE_PATIENCE_S", 0.0)
    content = bytes(range(256)) * 4096
    with s3.files.open_output_stream(f"{s3.bucket}/file") as out:
        out.write(content)
    keys = {
        "s3.access-key-id": s3.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": s3.environment["AWS_SECRET_ACCESS_KEY"],
    }
    gateway = StoreGateway()
    with closing(gateway):
        (path,) = gateway.paths([f"s3://{s3.bucket}/file"], {"s3.endpoint": s3.url, "s3.region": "here", **keys})
        _, _, host, file = path.split("/", 3)
        url = f"http://{host}/webhdfs/v1/{file}?op=OPEN&offset=0"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read() == content
        patient = PatientReads.__call__

        def killed(reads: PatientReads, read: object) -> object:
            """When the first piece was answered."""
            if begun:
                s3.kill()
            begun.append(read)
            return patient(reads, read)  # type: ignore[arg-type]

        begun: list[object] = []
        with monkeypatch.context() as patch:
            patch.setattr(PatientReads, "__call__", killed)
            with urllib.request.urlopen(url, timeout=60) as answer, pytest.raises(IncompleteRead) as cut:
                answer.read()
        assert content.startswith(cut.value.partial)
        assert gateway.trouble() is not None
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=60)
        assert refused.value.code == 500
        assert b"LakeError: the store of the lake, s3://lake, does not answer" in refused.value.read()
        s3.again()
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read() == content
        assert gateway.trouble() is None

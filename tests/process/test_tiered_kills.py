"""A ledger on its way to a bucket, with `kill -9` of broker and store at each step: every offset is counted."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from threading import Thread

import pytest
from pyarrow.fs import FileSelector

from weir.model.errors import WeirError
from weir.model.topics import NamespaceName
from weir.spark.lake.catalog import namespace_lake, turn_on
from weir.testing.processes.both_clients import Kafka, some_rows
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.states import stands_still

from .tiered_kit import Weir, checked, until, weir_in

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(600)]

#: As docs/adr/0049 numbers them.
STEPS = ("named", "copied", "kept", "going", "deleted", "gone")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("SeaweedFS is not installed")
    with closing(server), pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def weir(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Weir]:
    with weir_in(tmp_path_factory.mktemp("weir")) as found:
        yield found


def turn_on_tiering(weir: Weir, topic: str) -> None:
    namespace = NamespaceName.parse("public/default")
    access = replace(weir.access, patience_s=0.0)
    now = namespace_lake(access, namespace).topics[topic]
    assert now is not None
    with suppress(WeirError):  # whoever is killed does not answer
        turn_on(access, namespace, topic, replace(now, tiered_after_ms=0))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victims", [("broker",), ("store",), ("broker", "store")], ids=" and ".join)
def test_whoever_is_killed_at_any_step_no_offset_is_lost_and_nothing_is_left_behind(
    weir: Weir, s3: S3Server, victims: tuple[str, ...], step: str
) -> None:
    topic = f"{step}-{'-'.join(victims)}"
    where = ("--to", f"s3://{s3.bucket}/weir", "--option", f"s3.endpoint={s3.url}")
    where = (*where, "--catalog", f"sqlite:///{weir.folder}/catalog.db")
    with closing(Kafka(weir.up.kafka)) as kafka:
        kafka.create(topic, 1)
        weir("lake", "on", topic, *where)
        kafka.send(topic, some_rows(3))
        weir.export()
        before = checked(weir, topic, 3)
        weir.up.kill()
        weir.up.variables = {"WEIR_TIERED_STOP_AT": f"pause:{step}"}
        weir.up.start()
        weir.stats(topic)  # so that it is loaded
        # By another thread: the broker may stand still before it has answered.
        asking = Thread(target=turn_on_tiering, args=(weir, topic), daemon=True)
        asking.start()
        until(lambda: stands_still(weir.up.pid))
        weir.up.variables = {}  # whoever is started from here on stands still nowhere
        if "store" in victims:
            s3.kill()
        if "broker" in victims:
            weir.up.kill()
            weir.up.start()
        else:
            os.kill(weir.up.pid, signal.SIGCONT)
        asking.join()
        assert kafka.send(topic, some_rows(1)) == [3], "who produces notices nothing"
        if "store" in victims:
            s3.again()
        assert checked(weir, topic, 3) == before
        before = checked(weir, topic, 4)
        turn_on_tiering(weir, topic)  # if the broker died before it had heard of it
        weir.export()
        weir.tiered(topic)
        weir.restart(kafka)
        assert checked(weir, topic, 4) == before
        assert [one[0] for one in before] == [0, 1, 2, 3]
        ledgers = [one["ledgerId"] for one in weir.internal(topic)["ledgers"]]
        until(lambda: segments(s3, topic) == ledgers)
    weir("lake", "off", topic)


def segments(s3: S3Server, topic: str) -> list[int]:
    """Ledgers of the objects that are there."""
    found = s3.files.get_file_info(FileSelector(f"{s3.bucket}/weir/_segments", recursive=True))
    here = [one.base_name for one in found if one.base_name.endswith(".segment") and f"/{topic}-" in one.path]
    return sorted(int(name.partition("-")[0]) for name in here)

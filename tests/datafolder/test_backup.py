"""`weir backup` and `weir restore`: what was acknowledged before is in the copy, running or not, message by
message."""

import asyncio
import tarfile
from pathlib import Path

import pytest

from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.datafolder.archive import backup_to_file, check_file, restore_from_file
from weir.datafolder.backup import backup, check_backup, restore
from weir.datafolder.survey import verify_folder
from weir.model.errors import ConfigError, DiskError
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load

pytestmark = pytest.mark.slow

COUNT, ACKED = 60, 25


def _weir(folder: Path) -> BrokerNode:
    settings = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "http")]
    settings += [
        "listeners.kafka=",
        "listeners.amqp=",
        "listeners.rocketmq=",
        f"data={folder}",
        "storage.journal_file_bytes=1048576",
    ]
    settings += ["storage.low_water_bytes=0", "storage.high_water_bytes=0"]
    return BrokerNode(real_runtime(), load(assignments=settings).config)


def _client(node: BrokerNode) -> PulsarClient:
    return PulsarClient(real_runtime(), f"pulsar://{node.addresses['pulsar']}")


async def _send(node: BrokerNode, numbers: range) -> None:
    async with _client(node) as client:
        producer = await client.producer("t")
        for number in numbers:
            await producer.send(Outgoing(b"%d" % number))


async def _left(folder: Path, subscription: str) -> list[int]:
    node = _weir(folder)
    await node.start()
    found: list[int] = []
    try:
        async with asyncio.timeout(60), _client(node) as client:
            await (await client.producer("t")).send(Outgoing(b"-1"))
            consumer = await client.consumer("t", Subscribing(subscription, earliest=True))
            while (message := await consumer.receive()) is not None:
                await consumer.ack(message)
                if int(bytes(message.payload)) < 0:
                    break
                found.append(int(bytes(message.payload)))
    finally:
        await node.close()
    return found


async def test_a_copy_of_a_running_weir_has_what_was_acknowledged_and_the_next_takes_what_is_new(
    tmp_path: Path,
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    node = _weir(data)
    await node.start()
    try:
        async with _client(node) as client:
            consumer = await client.consumer("t", Subscribing("s", earliest=True))
            await _send(node, range(COUNT))
            for _ in range(ACKED):
                message = await consumer.receive()
                assert message is not None
                await consumer.ack(message)
        first = await backup(real_runtime(), str(data), str(copy))
        assert first.running
        assert first.copied_bytes == first.bytes
        again = await backup(real_runtime(), str(data), str(tmp_path / "other"))
        assert again.running, "right behind the first"
        await _send(node, range(COUNT, 2 * COUNT))
        second = await backup(real_runtime(), str(data), str(copy))
        assert second.copied_bytes < second.bytes, "entry logs of before are there already"
        await _send(node, range(2 * COUNT, 2 * COUNT + 5))
    finally:
        await node.close()
    assert (await verify_folder(real_runtime(), str(copy))).is_whole
    restored = tmp_path / "restored"
    await restore(real_runtime(), str(copy), str(restored))
    assert await _left(restored, "s") == list(range(ACKED, 2 * COUNT))
    assert await _left(restored, "new") == list(range(2 * COUNT)), "the acknowledgements were restored too"


async def test_a_copy_is_made_of_a_stopped_folder_and_damage_of_it_is_found(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    node = _weir(data)
    await node.start()
    await _send(node, range(COUNT))
    await node.close()
    report = await backup(real_runtime(), str(data), str(copy))
    assert not report.running
    assert (await check_backup(real_runtime(), str(copy))).files == report.files
    await restore(real_runtime(), str(copy), str(tmp_path / "again"))
    assert await _left(tmp_path / "again", "s") == list(range(COUNT))
    (log,) = [path for path in (copy / "bookie/logs").glob("*.log") if b"\x00" in path.read_bytes()][:1]
    broken = bytearray(log.read_bytes())
    broken[len(broken) // 2] ^= 1
    log.write_bytes(broken)
    with pytest.raises(DiskError, match=log.name):
        await check_backup(real_runtime(), str(copy))
    with pytest.raises(DiskError, match=log.name):
        await restore(real_runtime(), str(copy), str(tmp_path / "bad"))


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
async def test_a_copy_is_one_file_where_its_name_says_so(tmp_path: Path, ending: str) -> None:
    data, copy = tmp_path / "data", tmp_path / f"copy.{ending}"
    node = _weir(data)
    await node.start()
    try:
        await _send(node, range(COUNT))
        made = await backup_to_file(real_runtime(), str(data), str(copy))
    finally:
        await node.close()
    assert made.running
    with tarfile.open(copy) as known:  # any tar reads it
        assert known.getnames()[-1] == "backup.json"
        assert len(known.getnames()) == made.files + 1
    assert (await check_file(real_runtime(), str(copy))).files == made.files
    await restore_from_file(real_runtime(), str(copy), str(tmp_path / "again"))
    assert await _left(tmp_path / "again", "s") == list(range(COUNT))
    with pytest.raises(ConfigError, match="exists"):
        await backup_to_file(real_runtime(), str(data), str(copy))


async def test_a_file_that_is_damaged_or_cut_short_or_somebody_elses_is_not_restored(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.tar"
    node = _weir(data)
    await node.start()
    await _send(node, range(COUNT))
    await node.close()
    assert not (await backup_to_file(real_runtime(), str(data), str(copy))).running
    whole = copy.read_bytes()
    bad = tmp_path / "bad.tar"
    bad.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DiskError, match="ends too early"):
        await restore_from_file(real_runtime(), str(bad), str(tmp_path / "short"))
    with tarfile.open(copy) as known:
        member = next(one for one in known if one.name.startswith("meta/log"))
    at = member.offset_data + 100
    bad.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DiskError, match="is not what was copied"):
        await restore_from_file(real_runtime(), str(bad), str(tmp_path / "damaged"))
    assert not list((tmp_path / "damaged").rglob("log-*[0-9]")), "nothing has its name, so nothing starts on it"
    with pytest.raises(DiskError, match="is not what was copied"):
        await check_file(real_runtime(), str(bad))
    with tarfile.open(bad, "w") as other:
        other.add(__file__, arcname="../outside")
    with pytest.raises(DiskError, match="was not made by weir backup"):
        await restore_from_file(real_runtime(), str(bad), str(tmp_path / "others"))
    assert not (tmp_path / "outside").exists()


async def test_what_is_no_copy_and_what_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is no finished copy"):
        await restore(real_runtime(), str(tmp_path / "full"), str(tmp_path / "new"))
    data = tmp_path / "data"
    node = _weir(data)
    await node.start()
    await node.close()
    with pytest.raises(ConfigError, match="is no finished copy"):
        await backup(real_runtime(), str(data), str(tmp_path / "full"))
    await backup(real_runtime(), str(data), str(tmp_path / "copy"))
    with pytest.raises(ConfigError, match="is not empty"):
        await restore(real_runtime(), str(tmp_path / "copy"), str(tmp_path / "full"))

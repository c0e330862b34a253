"""`weir ledger` shows, reads, checks and repairs ledgers, for people and for programs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from weir.cli import ledger as ledger_session
from weir.cli.main import cli
from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import BookieUnavailableError, LedgerNotFoundError
from weir.model.ids import BookieId, EntryId
from weir.model.ledger import LedgerMetadata, Quorum
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.testing.storage.fakes import FakeBookiePool
from weir.wire.metadata import BookieInfo, encode_bookie_info


class Cluster:
    """Fake bookies and metadata that outlive each command's event loop."""

    def __init__(self) -> None:
        self.core = MemoryCore(real_runtime().clock)
        self.pool = FakeBookiePool()

    @asynccontextmanager
    async def session(self, runtime: Runtime, meta_url: str) -> AsyncIterator[LedgerClient]:
        assert meta_url == "memory:"
        client = LedgerClient(runtime, MemoryMeta(self.core, runtime), self.pool)
        await client.start()
        yield client
        await client.close()

    def do(self, work: Callable[[LedgerClient], Any]) -> Any:
        """Run something with a client, as another program would."""

        async def main() -> Any:
            async with self.session(real_runtime(), "memory:") as client:
                return await work(client)

        return asyncio.run(main())

    def weir(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["ledger", *arguments, "--meta", "memory:"])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(ledger_session, "ledger_session", cluster.session)

    async def register(client: LedgerClient) -> None:
        for name in ("b0", "b1", "b2", "b3"):
            info = BookieInfo(BookieId(name), name, 1)
            await client.context.meta.put(keys.bookie_writable(BookieId(name)), encode_bookie_info(info))

    cluster.do(register)
    return cluster


def closed_ledger(cluster: Cluster) -> LedgerMetadata:
    async def write(client: LedgerClient) -> LedgerMetadata:
        writer = await client.create(Quorum(3, 3, 2))
        await writer.append_many([b"one", b"two", b"drei\n", b"\xff"])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await writer.close()

    ledger: LedgerMetadata = cluster.do(write)
    return ledger


def lose(cluster: Cluster, bookie_id: BookieId) -> None:
    async def unregister(client: LedgerClient) -> None:
        await client.context.meta.delete(keys.bookie_writable(bookie_id))

    cluster.do(unregister)
    cluster.pool.get(bookie_id).failure = BookieUnavailableError(f"{bookie_id} is down")


def test_list_shows_every_ledger(cluster: Cluster) -> None:
    ledger = closed_ledger(cluster)
    for_people = cluster.weir("list")
    assert for_people.exit_code == 0, for_people.output
    assert "closed" in for_people.output
    assert "3/3/2" in for_people.output
    (listed,) = json.loads(cluster.weir("list", "--json").output)
    assert (listed["ledger"], listed["entries"], listed["length"]) == (ledger.ledger_id, 4, 12)
    assert json.loads(cluster.weir("list", "--underreplicated", "--json").output) == []


def test_show_names_fragments_and_bookies_that_are_gone(cluster: Cluster) -> None:
    ledger = closed_ledger(cluster)
    lose(cluster, ledger.fragments[0].bookies[0])
    shown = cluster.weir("show", str(ledger.ledger_id))
    assert "0 - 3" in shown.output
    assert f"{ledger.fragments[0].bookies[0]} (gone)" in shown.output
    assert f"{ledger.fragments[0].bookies[1]} (writable)" in shown.output
    as_json = json.loads(cluster.weir("show", str(ledger.ledger_id), "--json").output)
    assert as_json["fragments"] == [{"first_entry": 0, "bookies": list(ledger.fragments[0].bookies)}]


def test_read_prints_entries_for_people_programs_and_pipes(cluster: Cluster) -> None:
    ledger_id = str(closed_ledger(cluster).ledger_id)
    assert cluster.weir("read", ledger_id).output == "0\t3\tone\n1\t3\ttwo\n2\t5\tdrei\\n\n3\t1\t\\xff\n"
    assert cluster.weir("read", ledger_id, "--from", "1", "--to", "1").output == "1\t3\ttwo\n"
    lines = cluster.weir("read", ledger_id, "--json").output.splitlines()
    assert [json.loads(line)["payload_hex"] for line in lines] == ["6f6e65", "74776f", "647265690a", "ff"]


def test_check_finds_what_is_wrong_and_says_so_by_its_exit_code(cluster: Cluster) -> None:
    ledger = closed_ledger(cluster)
    assert cluster.weir("check").exit_code == 0
    first, second, third = ledger.fragments[0].bookies
    del cluster.pool.get(first).ledgers[ledger.ledger_id].entries[EntryId(1)]
    cluster.pool.get(second).damage(ledger.ledger_id, 1)
    cluster.pool.get(third).failure = BookieUnavailableError("unplugged")
    found = cluster.weir("check", str(ledger.ledger_id))
    assert found.exit_code == 1
    assert "unplugged" in found.output
    assert "no reachable bookie has 1" in found.output
    (report,) = json.loads(cluster.weir("check", "--json").output)
    assert report["lost"] == [1]
    assert [(r["missing"], r["damaged"]) for r in report["replicas"]] == [([1], []), ([], [1]), ([], [])]


def test_replicate_fills_gaps_and_replaces_lost_bookies(cluster: Cluster) -> None:
    ledger = closed_ledger(cluster)
    first, second, _ = ledger.fragments[0].bookies
    del cluster.pool.get(first).ledgers[ledger.ledger_id].entries[EntryId(1)]
    filled = cluster.weir("replicate", str(ledger.ledger_id))
    assert filled.exit_code == 0, filled.output
    assert f"{first} received 1 missing entries" in filled.output
    lose(cluster, second)
    replaced = cluster.weir("replicate", "--lost", second, "--json")
    assert replaced.exit_code == 0, replaced.output
    (report,) = json.loads(replaced.output)
    assert report["replaced"][0]["lost"] == second
    assert cluster.weir("check").exit_code == 0


def test_replicate_without_arguments_works_off_the_marks(cluster: Cluster) -> None:
    assert "no ledger is marked for repair" in cluster.weir("replicate").output

    async def degraded(client: LedgerClient) -> LedgerMetadata:
        writer = await client.create(Quorum(4, 4, 2))
        cluster.pool.get(BookieId("b1")).failure = BookieUnavailableError("down")
        await writer.append(b"x")
        cluster.pool.get(BookieId("b1")).failure = None
        return await writer.close()

    cluster.do(degraded)
    (listed,) = json.loads(cluster.weir("list", "--underreplicated", "--json").output)
    assert listed["underreplicated"] == ["b1"]
    assert cluster.weir("replicate").exit_code == 0
    assert json.loads(cluster.weir("list", "--underreplicated", "--json").output) == []
    assert cluster.weir("check").exit_code == 0


def test_a_repair_that_cannot_be_done_says_why(cluster: Cluster) -> None:
    async def wide(client: LedgerClient) -> LedgerMetadata:
        writer = await client.create(Quorum(4, 4, 2))
        await writer.append(b"x")
        return await writer.close()

    ledger = cluster.do(wide)
    lose(cluster, BookieId("b0"))
    result = cluster.weir("replicate", str(ledger.ledger_id), "--lost", "b0")
    assert result.exit_code == 1
    assert "no bookie can take the place of b0" in result.output


def test_a_ledger_that_is_not_there_is_a_clear_error(cluster: Cluster) -> None:
    result = cluster.weir("show", "404")
    assert isinstance(result.exception, LedgerNotFoundError)
    assert "there is no ledger 404" in str(result.exception)


@pytest.mark.parametrize("command", ["list", "show", "read", "check", "replicate"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli, ["ledger", command, "--help"])
    assert result.exit_code == 0
    assert "--meta" in result.output


def test_without_a_metadata_store_the_command_is_not_understood() -> None:
    result = CliRunner().invoke(cli, ["ledger", "list"])
    assert result.exit_code == 2
    assert "--meta" in result.output

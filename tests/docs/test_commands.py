"""The commands of README and of the pages for beginners and operators, run as they stand, in their order.

Each page is followed in a folder of its own by somebody who has a shell, with a Weir at other ports than
usual: only addresses and folders are changed in what is run. What is left out is listed here.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.pages import ROOT, Block, Page
from weir.testing.processes.up import UpProcess, environment

pytestmark = pytest.mark.process

#: What sets up, and what other tests run: the demo SQL, tests/spark sessions, tests/process the wheel.
_NOT_RUN = re.compile(r"^(git clone|make |pip install|\. \.venv|weir up|weir sql|docker )")
_USUAL = {
    "pulsar": "127.0.0.1:6650",
    "kafka": "127.0.0.1:9092",
    "amqp": "127.0.0.1:5672",
    "rocketmq": "127.0.0.1:8081",
    "http": "127.0.0.1:8080",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """What `weir up` in the first terminal gives."""
    up = UpProcess(tmp_path_factory.mktemp("served"))
    yield up.start()
    up.close()


class Reader:
    """Somebody who does what a page says, line by line."""

    def __init__(self, folder: Path, addresses: dict[str, str], **variables: str) -> None:
        self._folder = folder
        #: Text of pages that is replaced before it runs.
        self.moved = {_USUAL[name]: address for name, address in addresses.items()}
        if "amqp" in addresses:  # written as a host and a port
            host, _, port = addresses["amqp"].rpartition(":")
            self.moved[f'"{host}", {_USUAL["amqp"].rpartition(":")[2]}'] = f'"{host}", {port}'
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.variables = environment() | {"PATH": path, "HOME": str(folder)} | variables
        self.said = ""

    def follow(self, page: Page) -> int:
        """Run all of it; how many commands and programs that were."""
        return self.follow_blocks(page.blocks())

    def follow_blocks(self, blocks: list[Block]) -> int:
        """Run some blocks of a page; the number of commands and programs."""
        done = 0
        for block in blocks:
            text = self._here(block.text)
            if block.language == "python" and "weir.spark" not in text:
                self.run(sys.executable, "-c", text)
                done += 1
            elif block.language == "sh":
                for line in _lines(text):
                    self.shell(line)
                    done += 1
        return done

    def shell(self, line: str) -> None:
        if "--follow" in line:
            self._look_at(line)
        else:
            self.run("bash", "-ec", line)

    def run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        self.said += done.stdout

    def _look_at(self, line: str) -> None:
        """Of a command that goes on for ever: it shows what comes meanwhile. Whoever runs the tests in the
        background has them ignore interrupts, and that would be inherited."""
        with subprocess.Popen(
            ["env", "--default-signal=INT", "bash", "-ec", f"exec {line}"],
            cwd=self._folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            self.run("weir", "produce", line.split()[2], "hello again")
            self.said += process.stdout.readline()
            process.send_signal(signal.SIGINT)

    def _here(self, text: str) -> str:
        for usual, address in self.moved.items():
            text = text.replace(usual, address)
        return text


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        bare = re.split(r"\s+#", line)[0].strip()
        if bare and not bare.startswith("#") and not _NOT_RUN.match(bare):
            yield bare


def test_readme_can_be_followed(served: UpProcess, tmp_path: Path) -> None:
    reader = Reader(tmp_path, served.addresses, WEIR_URL=served.http_url)
    assert reader.follow(Page(ROOT / "README.md")) >= 8
    assert "hello from Pulsar" in reader.said


def test_the_page_for_a_beginning_can_be_followed(served: UpProcess, tmp_path: Path) -> None:
    reader = Reader(tmp_path, served.addresses, WEIR_URL=served.http_url)
    assert reader.follow(Page(ROOT / "docs" / "tutorials" / "getting-started.md")) == 5
    assert "world" in reader.said


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UpProcess, UpProcess]]:
    """The old system, for which another Weir stands, and the new one with its connectors."""
    old = UpProcess(tmp_path_factory.mktemp("old"))
    new = UpProcess(tmp_path_factory.mktemp("new"))
    new.options = ("--connect",)
    yield old.start(), new.start()
    new.close()
    old.close()


@pytest.mark.parametrize(
    ("system", "source", "topic"), [("kafka", "kafka:9092", "orders"), ("pulsar", "pulsar:6650", "invoices")]
)
def test_a_connector_moves_topics_as_the_guide_says(
    moving: tuple[UpProcess, UpProcess], tmp_path: Path, system: str, source: str, topic: str
) -> None:
    old, new = moving
    Reader(tmp_path, old.addresses, WEIR_URL=old.http_url).shell(f"weir produce {topic} 'from the old one'")
    reader = Reader(tmp_path, new.addresses, WEIR_URL=new.http_url)
    reader.moved[source] = old.addresses[system]
    page = Page(ROOT / "docs" / "how-to" / f"coming-from-{system}.md")
    for block in page.blocks():
        if block.language == "toml":
            definition = block.text.replace(source, old.addresses[system])
            (tmp_path / f"from-{system}.toml").write_text(definition)
        assert block.language == "toml" or reader.follow_blocks([block]) >= 1
        if "connect add" in block.text:  # the guide waits until the messages are there
            reader.run("weir", "consume", topic, "--follow", "-n", "2" if topic == "orders" else "1")
    assert "from the old one" in reader.said


def test_definitions_and_messages_of_rabbitmq_move_as_the_guide_says(
    moving: tuple[UpProcess, UpProcess], tmp_path: Path
) -> None:
    old, new = moving
    page = Page(ROOT / "docs" / "how-to" / "coming-from-rabbitmq.md")
    hello, *move = page.blocks()
    Reader(tmp_path, old.addresses).follow_blocks(
        [Block("python", hello.text.replace("hello", "from the old one"))]
    )
    reader = Reader(tmp_path, new.addresses, WEIR_URL=new.http_url)
    reader.moved |= {"rabbitmq:15672": old.addresses["http"], "rabbitmq:5672": old.amqp}
    assert reader.follow_blocks([hello, *move]) == 5
    assert '"refused":[]' in reader.said
    reader.run("weir", "consume", "mail", "--follow", "-n", "2")
    assert "from the old one" in reader.said


def test_copies_are_made_checked_and_restored_as_their_page_says(served: UpProcess, tmp_path: Path) -> None:
    """docs/how-to/backup.md, of the Weir that runs; of a cluster tests/datafolder does the same."""
    moved = {
        "/var/lib/weir2": "two",
        "/var/lib/weir3": "three",
        "/var/lib/weir": str(served.data),
        "/backups": ".",
    }
    reader = Reader(tmp_path, {})
    text = next(
        block.text for block in Page(ROOT / "docs" / "how-to" / "backup.md").blocks() if block.language == "sh"
    )
    for written, meant in moved.items():
        text = text.replace(written, meant)
    for line in _lines(text):
        reader.shell(line)
    assert reader.said.count("copied to") == 3
    assert reader.said.count("unchanged since the copy") == 2
    assert reader.said.count("restored to the state of") == 2


def test_the_steps_of_an_operator_can_be_followed(tmp_path: Path) -> None:
    """TLS, tokens, grants and their check, as docs/how-to/security.md has them: nothing else sets this Weir up."""
    etc = tmp_path / "etc"
    etc.mkdir()
    moved = {"/etc/weir": str(etc), "/var/lib/weir": str(tmp_path / "lib")}
    operator = Reader(tmp_path, {}, WEIR_CA=f"{etc}/tls/ca.pem", WEIR_TOKEN="file:admin.token")
    up = UpProcess(
        tmp_path,
        *(
            f"listeners.{name}=127.0.0.1:0"
            for name in ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")
        ),
    )
    up.options = ("--config", f"{etc}/weir.toml")
    try:
        for block in Page(ROOT / "docs" / "how-to" / "security.md").blocks():
            text = block.text
            for written, meant in moved.items():
                text = text.replace(written, meant)
            if block.language == "toml":
                with (etc / "weir.toml").open("a") as config:
                    config.write(text)
                up.start()
                https = f"localhost:{up.addresses['https'].rpartition(':')[2]}"
                moved["weir.example:8443"] = https
                operator.variables["WEIR_URL"] = f"https://{https}"
            for line in _lines(text) if block.language == "sh" else ():
                operator.shell(f"! {line}" if line.startswith("WEIR_TOKEN= ") else line)
    finally:
        up.close()
    assert "shop/orders" in operator.said

"""A whole Weir, and a browser without a screen or scripts: what it is sent, it sends back as a browser would."""

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

import pulsar
import pytest
from tests.admin.conftest import Weir


@dataclass
class Page:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def proof(self) -> str:
        found = re.search(r'name="proof" value="([0-9a-f]+)"', self.text)
        assert found is not None, "the page has no form"
        return found[1]

    @property
    def words(self) -> str:
        """The text alone."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.text).split())


@dataclass
class Visitor:
    """Keeps cookies, follows redirects, and fills forms in."""

    weir: Weir
    cookies: dict[str, str] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Page:
        address = self.weir.up.addresses["http"]
        connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        sent = {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        connection.request(method, path, body, {**sent, **(headers or {})})
        response = connection.getresponse()
        for said in response.headers.get_all("set-cookie") or []:
            name, _, rest = said.partition("=")
            value = rest.partition(";")[0]
            if "Max-Age=0" in rest:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        page = Page(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode())
        connection.close()
        return page

    def get(self, path: str, *, follow: bool = True, **headers: str) -> Page:
        page = self.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        return self.get(page.headers["location"]) if follow and page.status == 303 else page

    def post(
        self,
        path: str,
        *,
        on: str = "/console/topics",
        follow: bool = True,
        head: dict[str, str] | None = None,
        **fields: str,
    ) -> Page:
        """As the form of the page `on` would."""
        data = urlencode({"proof": self.get(on).proof, **fields}).encode()
        page = self.request(
            "POST", path, data, {"content-type": "application/x-www-form-urlencoded", **(head or {})}
        )
        return self.get(page.headers["location"]) if follow and page.status == 303 else page


@pytest.fixture(scope="module")
def start_weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Weir]]:
    nodes: list[Weir] = []

    def start(*settings: str) -> Weir:
        nodes.append(Weir(tmp_path_factory.mktemp("weir"), *settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture(scope="module")
def weir(start_weir: Callable[..., Weir]) -> Weir:
    """One that lets everybody do everything."""
    return start_weir()


@pytest.fixture
def visitor(weir: Weir) -> Visitor:
    return Visitor(weir)


@pytest.fixture
def unique() -> str:
    return f"n{uuid4().hex[:12]}"


@pytest.fixture
def client(weir: Weir, tmp_path: Path) -> Iterator[pulsar.Client]:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
    client = pulsar.Client(weir.url, operation_timeout_seconds=60, logger=quiet)
    yield client
    with suppress(pulsar.AlreadyClosed):
        client.close()

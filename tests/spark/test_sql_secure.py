"""SQL over TLS with tokens: each role does what its grants allow, and is told what it may not."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from weir.broker.security.tokens import create_secret, create_token
from weir.client.admin import Access, ask_v2
from weir.client.replays import all_replays
from weir.model.errors import NotAuthenticatedError, NotAuthorisedError, WeirError
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.runner import Runner, check_allowed
from weir.spark.tables.names import WeirCluster
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess, environment

from .sql_session import patiently

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

SECRET = create_secret()
WITH_TOKENS = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=admin",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)


class Secure:
    """A Weir behind TLS, with a tenant, its administrator `owner`, and who may read and write there."""

    def __init__(self, folder: Path) -> None:
        made = make_certificate(folder, "weir")
        self.ca, private = made.file, made.key_file
        listeners = ("listeners.https=127.0.0.1:0", "listeners.kafka_tls=127.0.0.1:0")
        self.up = UpProcess(folder, *WITH_TOKENS, *listeners, f"tls.certificate={self.ca}", f"tls.key={private}")
        self.up.start()
        self.url = f"https://{self.up.addresses['https']}"
        tenant = {"adminRoles": ["owner"], "allowedClusters": ["standalone"]}
        for verb, path, body in (
            ("PUT", "tenants/acme", tenant),
            ("PUT", "namespaces/acme/shop", None),
            ("POST", "namespaces/acme/shop/permissions/reader", ["consume"]),
            ("POST", "namespaces/acme/shop/permissions/writer", ["produce"]),
            ("PUT", "persistent/acme/shop/orders/partitions", 1),
            ("PUT", "persistent/public/default/secret/partitions", 1),
        ):
            ask_v2(self.access("admin"), verb, path, body)

    def access(self, role: str | None) -> Access:
        token = None if role is None else create_token(SECRET, role)
        return Access(self.url, token, str(self.ca), 5.0)

    def place(self, role: str | None) -> WeirCluster:
        return WeirCluster.find(self.access(role))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    found = Secure(tmp_path_factory.mktemp("secure"))
    yield found
    found.up.close()


def test_each_role_does_with_sql_what_its_grants_allow(
    spark: SparkSession, secure: Secure, tmp_path: Path
) -> None:
    def do(role: str, text: str) -> Rows | Done:
        (statement,) = parse(text)
        return Console(lambda: spark, secure.place(role)).do(statement)

    def rows(role: str, text: str) -> list[tuple[object, ...]]:
        found = do(role, text)
        assert isinstance(found, Rows)
        return [tuple(row) for row in found.rows]

    orders, copy = "acme.shop.orders", "acme.shop.copy"
    do("writer", f"INSERT INTO {orders} VALUES ('1'), ('2'), ('3')")
    assert rows("reader", "SHOW TABLES") == [(orders,)]
    assert rows("reader", f"SELECT sum(cast(value AS int)) FROM {orders}") == [(6,)]
    for role, text in (
        ("reader", f"INSERT INTO {orders} VALUES ('4')"),
        ("writer", f"SELECT * FROM {orders}"),
        ("reader", f"CREATE STREAM {copy} AS SELECT value FROM {orders}"),
        ("reader", f"DROP STREAM {copy}"),
        ("owner", "SELECT * FROM secret"),
        ("owner", f"CREATE STREAM {copy} AS SELECT value FROM secret"),
        ("owner", f"CREATE STREAM stolen AS SELECT value FROM {orders}"),
    ):
        with pytest.raises(WeirError, match="may not") as refused:
            do(role, text)
        assert "\n" not in str(refused.value), text
    assert rows("owner", "SHOW STREAMS") == rows("admin", "SHOW STREAMS") == []
    done = do("owner", f"CREATE STREAM {copy} AS SELECT value, __key FROM {orders}")
    assert isinstance(done, Done)
    assert rows("reader", "SHOW STREAMS") == []
    with pytest.raises(NotAuthorisedError, match="superuser"):
        check_allowed(secure.access("owner"))
    check_allowed(secure.access("admin"))
    runner = Runner(spark, secure.place("admin"), str(tmp_path))
    try:
        sums = f"SELECT sum(cast(value AS int)), count(*) FROM {copy}"
        patiently(lambda: runner.step() and rows("reader", sums) == [(6, 3)])
        do("owner", f"DROP STREAM {copy}")
        runner.step()
    finally:
        runner.close()


def test_who_may_read_write_and_administer_replays_and_it_is_kept_who_did(
    spark: SparkSession, secure: Secure
) -> None:
    def do(role: str, text: str) -> Rows | Done:
        (statement,) = parse(text)
        return Console(lambda: spark, secure.place(role)).do(statement)

    source, target = "acme.shop.returns", "acme.shop.audit"
    admin = secure.access("admin")
    for name in (source, target):
        ask_v2(admin, "PUT", f"persistent/{name.replace('.', '/')}/partitions", 1)
    ask_v2(admin, "POST", "namespaces/acme/shop/permissions/both", ["produce", "consume"])
    do("writer", f"INSERT INTO {source} VALUES ('1'), ('2'), ('3')")
    replay = f"REPLAY {source} WHERE value <> '2' INTO TOPIC {target}"
    for role in ("reader", "writer", "both"):
        with pytest.raises(WeirError, match="may not"):
            do(role, replay)
    with pytest.raises(WeirError, match="may not"):
        do("owner", f"REPLAY {source} INTO TOPIC public.default.secret")
    assert all_replays(admin) == []
    done = do("owner", replay)
    assert isinstance(done, Done)
    assert done.fields["messages"] == 2
    for role, seen in (("reader", 1), ("owner", 1), ("writer", 0)):
        shown = do(role, "SHOW REPLAYS")
        assert isinstance(shown, Rows)
        assert [row[shown.columns.index("by")] for row in shown.rows] == ["owner"] * seen
    found = do("reader", f"SELECT value FROM {target} ORDER BY value")
    assert isinstance(found, Rows)
    assert [tuple(row) for row in found.rows] == [("1",), ("3",)]


def test_without_a_token_or_with_another_the_command_says_so(secure: Secure, tmp_path: Path) -> None:
    def weir(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "weir.cli.main", *arguments, "--url", secure.url, "--ca", str(secure.ca)]
        variables = environment() | {"XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, check=False)
        assert len([line for line in done.stderr.splitlines() if not line.startswith("server: ")]) <= 1
        return done.returncode, done.stdout + done.stderr

    reader = tmp_path / "reader.token"
    reader.write_text(create_token(SECRET, "reader"))
    code, said = weir("sql", "-e", "SHOW TABLES", "--json", "--token", f"file:{reader}")
    assert code == 0, said
    assert "acme.shop.orders" in said
    code, said = weir("sql", "-e", "SHOW TABLES")
    assert (code, "token" in said) == (1, True), said
    code, said = weir("streams", "run", "--token", f"file:{reader}")
    assert (code, "superuser" in said) == (1, True), said
    with pytest.raises(NotAuthenticatedError):
        secure.place(None)

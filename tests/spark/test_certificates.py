"""A Weir that asks every client for a certificate: batches, streams, the sink, SQL, the lake and replays come in
by one, and who has none, or another's, is told in a sentence."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from weir.client.admin import ask_v2
from weir.client.kafka.cluster import Cluster
from weir.client.schemas import topic_of
from weir.model.errors import TlsRefusedError
from weir.spark.lake.catalog import Definition, namespace_lake, turn_on
from weir.spark.lake.export import Exporter, LocalJobs
from weir.spark.options import connection
from weir.spark.sql.console import Console
from weir.spark.sql.parsing import parse
from weir.spark.sql.results import Done, Rows
from weir.spark.tables.names import WeirCluster
from weir.testing.processes.certified import CertifiedUp

from .sql_session import ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Longer than a test may take: nobody waits for a certificate that is not taken.
_FOR_EVER_S = 3600.0
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CertifiedUp]:
    found = CertifiedUp(tmp_path_factory.mktemp("certified"))
    found.up.start()
    yield found
    found.up.close()


def test_who_has_a_certificate_does_everything_by_it(certified: CertifiedUp, spark: "SparkSession") -> None:
    place = WeirCluster.find(certified.access("admin"))
    assert place.kafka == certified.kafka
    assert place.options["kafka.ssl.certificate.location"] == certified.files("admin")[0]
    console = Console(lambda: spark, place, start="earliest")

    def do(text: str) -> Rows | Done:
        (statement,) = parse(text)
        return console.do(statement)

    def rows(text: str) -> list[tuple[object, ...]]:
        found = do(text)
        assert isinstance(found, Rows)
        return [tuple(row) for row in found.rows]

    ask_v2(place.access, "PUT", "persistent/public/default/orders/partitions", 1)
    body = {"type": "JSON", "schema": json.dumps(ORDER), "properties": {}}
    ask_v2(place.access, "POST", "schemas/public/default/orders/schema", body)
    do("INSERT INTO orders VALUES (0, 'ann', 1), (1, 'bob', 2)")
    definition = Definition(f"file://{certified.folder}/lake", f"sqlite:///{certified.folder}/lake/catalog.db")
    topic = topic_of("orders")
    turn_on(place.access, topic.namespace, topic.local, definition)
    there = namespace_lake(place.access, topic.namespace).of(topic)
    assert there is not None
    Exporter(place, LocalJobs()).export(topic, there)
    with Cluster(connection(place.options)) as cluster:
        assert cluster.topics() == ["orders"]
    do("INSERT INTO orders VALUES (2, 'cy', 3)")
    assert rows("SELECT sum(id), count(*) FROM orders") == [(3, 3)]
    typed = spark.read.format("weir").options(**place.options, valueFormat="schema").load("orders")
    assert "FileScan parquet" in typed._jdf.queryExecution().executedPlan().toString(), "the lake is read"
    assert sorted(row.id for row in typed.select("value.id").collect()) == [0, 1, 2]
    by_tasks = spark.read.schema(typed.schema).format("weir").options(**place.options, valueFormat="schema")
    assert by_tasks.load("orders").count() == 3
    query = (
        spark.readStream.format("weir")
        .options(**place.options, startingOffsets="earliest", subscription="copying")
        .load("orders")
        .drop("topic", "partition")
        .writeStream.format("weir")
        .options(**place.options, topic="copy", checkpointLocation=str(certified.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert rows("SELECT count(*) FROM copy") == [(3,)]
    ask_v2(place.access, "PUT", "persistent/public/default/again/partitions", 1)
    done = do("REPLAY orders WHERE id > 0 INTO TOPIC again")
    assert isinstance(done, Done)
    assert done.fields["messages"] == 2
    for command in ("replay", "functions", "connect", "streams"):
        code, said = certified.weir("admin", command, "list", "--json")
        assert code == 0, said
    assert "default/orders" in certified.weir("admin", "lake", "status", "--json")[1]


def test_who_has_none_or_anothers_is_told_so(certified: CertifiedUp) -> None:
    for who, command in ((None, ("sql", "--no-server", "-e", "SHOW TABLES")), ("other", ("replay", "list"))):
        code, said = certified.weir(who, *command)
        assert (code, "give one of an authority that it trusts" in said) == (1, True), said
    patient = replace(certified.access(None), patience_s=_FOR_EVER_S)
    with pytest.raises(TlsRefusedError, match="of an authority that it trusts"):
        WeirCluster.find(patient)
    unwanted = WeirCluster(patient, certified.kafka, secure=True).options
    settings = replace(connection(unwanted), retry_for_s=_FOR_EVER_S)
    with pytest.raises(TlsRefusedError, match="of an authority that it trusts"), Cluster(settings) as cluster:
        cluster.topics()
    for wrong, told in (("nowhere.pem", "file nowhere.pem does not exist"), (certified.ca, "cannot be used")):
        code, said = certified.weir(None, "replay", "list", "--cert", wrong)
        assert (code, told in said) == (2, True), said

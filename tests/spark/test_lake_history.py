"""What the lake has of a topic, for Python's tasks: if it is not to be had, that is said, and nothing left out."""

import pytest

from weir.model.errors import LakeError, NotAuthorisedError
from weir.spark.lake import history
from weir.spark.lake.catalog import Definition
from weir.spark.options import parse


class Lakes:
    """Of a namespace: all topics are in one."""

    def __init__(self, *_: object) -> None: ...

    def read(self, topic: object) -> Definition:
        return Definition("s3://lake", "postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("failure", "is_told"), [(LakeError("its catalog does not open"), True), (NotAuthorisedError("no"), False)]
)
def test_a_table_that_is_not_to_be_had_now_is_an_error_and_one_that_is_not_this_users_is_passed_by(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, is_told: bool
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(history, "namespace_lake", Lakes)
    monkeypatch.setattr(history, "_snapshot", fail)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "adminUrl": "http://127.0.0.1:1", "subscribe": "orders"}
    options = parse(given, streaming=True)
    if is_told:
        with pytest.raises(LakeError):
            history.find_topic_history(options, "orders")
    else:
        assert history.find_topic_history(options, "orders") is None

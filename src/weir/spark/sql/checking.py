"""Several statements, looked at before the first is done: each as it would find things after those before it.

What can be known without doing anything is known here: whether Spark understands a statement, whether its topics,
streams and views are there, whether columns and types go together, and whether rows fit the topic they go to.
"""

from collections.abc import Mapping
from functools import singledispatchmethod
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from weir.client import streams as rest
from weir.model.definitions import table_name
from weir.model.errors import SqlError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.topics import TopicName
from weir.spark.sql import statements as s
from weir.spark.sql.insert import as_messages
from weir.spark.sql.stream_query import plan
from weir.spark.tables.names import WeirCluster, topic_named
from weir.spark.tables.query import Query, quoted
from weir.spark.tables.topic_tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def view_text(statement: s.CreateView, views: Mapping[str, str]) -> str:
    """The query that a view stands for."""
    text = statement.query.where(views).text
    if not statement.columns:
        return text
    columns = ", ".join(map(quoted, statement.columns))
    return f"SELECT * FROM ({text}) AS {quoted(statement.name[0])}({columns})"


class Checker:
    """`check` each statement, in order; WeirError says what is wrong with one."""

    def __init__(self, tables: Tables, place: WeirCluster, views: Mapping[str, str]) -> None:
        self._tables = tables
        self._place = place
        self._views = dict(views)
        #: Topics that statements before make, and streams that they define or drop.
        self._made: set[TopicName] = set()
        self._streams: dict[TopicName, bool] = {}
        #: Whether a statement of Spark's own comes before: it may make tables, functions and settings.
        self._unsure = False

    @singledispatchmethod
    def check(self, statement: s.Statement) -> None:
        """Of the rest there is nothing to be known before."""

    # --- tables -------------------------------------------------------------------------------------------------

    @check.register
    def _select(self, statement: s.Select) -> None:
        self._query(statement.query.where(self._views))

    @check.register
    def _live(self, statement: s.SelectStream) -> None:
        self._query(statement.query.where(self._views), streaming=True)

    @check.register
    def _insert(self, statement: s.Insert) -> None:
        query = statement.query.where(self._views)
        if self._is_later(statement.name) or self._is_sparks(statement.name):
            self._query(query)
            return
        frame, topic = self._query(query), topic_named(statement.name)
        self._tables.check_exists(topic)
        if frame is not None:
            as_messages(frame, statement, topic, self._tables.value_schema(topic))

    @check.register
    def _describe(self, statement: s.DescribeTable) -> None:
        if statement.name[0].lower() not in self._views or len(statement.name) > 1:
            self._is_known(statement.name)

    @check.register
    def _show_tables(self, statement: s.ShowTables) -> None:
        if statement.namespace:
            topic_named((*statement.namespace, "any"))

    @check.register
    def _other(self, statement: s.Other) -> None:
        self._tables.check_free(statement.makes)
        query = None if statement.query is None else statement.query.where(self._views)
        self._parse(statement.text + ("" if query is None else query.text))
        if query is not None:
            self._query(query)
        self._unsure = True

    # --- views --------------------------------------------------------------------------------------------------

    @check.register
    def _create_view(self, statement: s.CreateView) -> None:
        (name,) = statement.name
        if name.lower() in self._views and not statement.or_replace:
            if statement.if_not_exists:
                return
            raise SqlError(f"there is a view {name} already", hint="write CREATE OR REPLACE VIEW")
        text = view_text(statement, self._views)
        self._query(Query.of(text))
        self._views[name.lower()] = text

    @check.register
    def _drop_view(self, statement: s.DropView) -> None:
        name = ".".join(statement.name)
        if self._views.pop(name.lower(), None) is None and not statement.if_exists:
            raise SqlError(f"there is no view {name}", hint="views end with the session that made them")

    # --- streams ------------------------------------------------------------------------------------------------

    @check.register
    def _create_stream(self, statement: s.CreateStream) -> None:
        name = topic_named(statement.name)
        if self._has_stream(name):
            if statement.if_not_exists:
                return
            raise SqlStreamExistsError(f"there is a stream {table_name(name)} already")
        query = statement.query.where(self._views, safe=True)
        if self._all_known(query) and not self._unsure:
            plan(self._tables, self._place, name, query, statement.options)
        self._streams[name] = True
        self._made.add(name)

    @check.register(s.PauseStream | s.ResumeStream | s.DescribeStream)
    def _named_stream(self, statement: s.PauseStream | s.ResumeStream | s.DescribeStream) -> None:
        name = topic_named(statement.name)
        if not self._has_stream(name):
            raise SqlStreamNotFoundError(f"there is no stream {table_name(name)}")

    @check.register
    def _watch(self, statement: s.Watch) -> None:
        self.check(statement.what)

    @check.register
    def _drop_stream(self, statement: s.DropStream) -> None:
        name = topic_named(statement.name)
        if not self._has_stream(name) and not statement.if_exists:
            raise SqlStreamNotFoundError(f"there is no stream {table_name(name)}")
        self._streams[name] = False

    def _has_stream(self, name: TopicName) -> bool:
        if name not in self._streams:
            self._streams[name] = rest.find_stream(self._place.access, name) is not None
        return self._streams[name]

    # --- replays ------------------------------------------------------------------------------------------------

    @check.register
    def _replay(self, statement: s.ReplayMessages) -> None:
        from weir.spark.sql.replay_statements import ReplayConsole

        if self._is_known(statement.name) and not self._made:  # what it goes to may be made before
            ReplayConsole(self._tables, self._place).check(statement)

    # --- queries ------------------------------------------------------------------------------------------------

    def _query(self, query: Query, *, streaming: bool = False) -> "DataFrame | None":
        """What Spark makes of it; None if that can only be known once statements before it are done."""
        if self._all_known(query) and not self._unsure:
            options = {"startingOffsets": "latest"} if streaming else {}
            return self._tables.frame(query, streaming=streaming, options=options, infer=True)
        self._parse(query.text)
        return None

    def _all_known(self, query: Query) -> bool:
        """Whether all that it reads is there now; SqlError if some of it will not be there either."""
        known = [self._is_known(parts) for parts in query.names]
        return all(known)

    def _is_known(self, parts: s.Name) -> bool:
        """False if a statement before makes it, or may; SqlError if there is none."""
        if self._is_later(parts):
            return False
        try:
            self._tables.check_exists(topic_named(parts))
        except SqlError:
            if not self._is_sparks(parts):
                raise
        return True

    def _is_later(self, parts: s.Name) -> bool:
        return (self._unsure and len(parts) == 1) or topic_named(parts) in self._made

    def _is_sparks(self, parts: s.Name) -> bool:
        return not self._unsure and self._tables.is_sparks(parts)

    def _parse(self, text: str) -> None:
        self._tables.check_syntax(text)

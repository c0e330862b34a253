"""The prompt of `weir sql`: statements as they are typed, history, completion and help."""

from collections.abc import Callable, Iterable
from threading import Lock

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from weir.cli.spark_session import state_folder
from weir.spark.sql.completion import completions
from weir.spark.sql.parsing import is_complete

_ENDS = ("exit", "quit")


_HELPS = ("help", "?", "\\h", "\\?")


HELP = """\
  SHOW TABLES;                              topics and views;  SHOW TABLES LIKE 'ord*';
  DESCRIBE orders;                          its columns; those with __ appear only if named
  SELECT * FROM orders LIMIT 10;            stored rows
  SELECT STREAM * FROM orders;              rows as they arrive; Ctrl-C ends it
  SELECT * FROM orders WITH (mode = 'PERMISSIVE');   including messages that violate their schema
  INSERT INTO orders (id, amount) VALUES (1, 9.5);
  CREATE VIEW big AS SELECT ...;            for this session
  CREATE STREAM big AS SELECT ...;          runs continuously; writes the topic big
  SHOW STREAMS;  DESCRIBE STREAM big;       progress;  WATCH STREAMS; repeated
  PAUSE STREAM big;  RESUME STREAM big;  DROP STREAM big;
  Tab completes tables after FROM, columns and words. Ctrl-C empties the line or ends a query.
  exit, or Ctrl-D, leaves. All of it: docs/reference/sql.md"""


def is_help(text: str) -> bool:
    """Whether the text is a request for help."""
    return text.rstrip("; ").lower() in _HELPS


class Words(Completer):
    """Columns of the topics that the statement names, topics, and words of SQL."""

    def __init__(self, names: Callable[[tuple[str, ...] | None], list[str]]) -> None:
        """`names`: returns tables, or columns of one."""
        self._names = names
        self._tables: list[str] = []
        self._columns: dict[tuple[str, ...], list[str]] = {}
        #: One request at a time: completion runs in its own thread.
        self._lock = Lock()

    def look(self) -> None:
        """Refresh the tables; columns are fetched on first use."""
        with self._lock:
            self._columns.clear()
            self._tables = self._names(None)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        found = completions(document.text, document.text_before_cursor, self._tables, self._columns_of)
        for text, typed in found:
            yield Completion(text, start_position=-typed)

    def _columns_of(self, table: tuple[str, ...]) -> list[str]:
        with self._lock:
            if table not in self._columns:
                self._columns[table] = self._names(table)
            return self._columns[table]


def statements(words: Words) -> Iterable[str]:
    """Statements from the prompt (one or several at a time), until the end of input."""
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(state_folder() / "sql_history")),
        auto_suggest=AutoSuggestFromHistory(),
        completer=words,
        complete_while_typing=False,
        complete_in_thread=True,  # columns come from the registry
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation="   ... ",
    )
    while True:
        try:
            text = session.prompt("weir> ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.rstrip("; ").lower() in _ENDS:
            return
        if text:
            yield text


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        """Enter executes a complete statement; an incomplete one continues on the next line."""
        text = event.current_buffer.text.strip()
        if is_complete(text) or text.lower() in (*_ENDS, *_HELPS):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys

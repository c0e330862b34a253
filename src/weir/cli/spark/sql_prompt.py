"""The prompt of `weir sql`: history, completion, statements over several lines."""

from collections.abc import Callable, Iterable
from threading import Lock

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from weir.cli.spark.common import state_folder
from weir.spark.sql.completion import completions
from weir.spark.sql.parsing import is_complete

_ENDS = ("exit", "quit")
_HELPS = ("help", "?", "\\h", "\\?")
HELP = """\
  SHOW TABLES;                              topics and views;  SHOW TABLES LIKE 'ord*';
  DESCRIBE orders;                          its columns; those with __ are shown only if they are named
  SELECT * FROM orders LIMIT 10;            what is stored
  SELECT STREAM * FROM orders;              rows as they come; Ctrl-C ends it
  SELECT * FROM orders WITH (mode = 'PERMISSIVE');   with messages that do not fit their schema
  INSERT INTO orders (id, amount) VALUES (1, 9.5);
  CREATE VIEW big AS SELECT ...;            for this session
  CREATE STREAM big AS SELECT ...;          runs on, and writes the topic big
  SHOW STREAMS;  DESCRIBE STREAM big;       how they go;  WATCH STREAMS; again and again
  PAUSE STREAM big;  RESUME STREAM big;  DROP STREAM big;
  Tab completes tables after FROM, columns and words. Ctrl-C empties the line or ends a query.
  exit, or Ctrl-D, leaves. All of it: docs/reference/sql.md"""


def is_help(text: str) -> bool:
    """Whether somebody asks what can be typed."""
    return text.rstrip("; ").lower() in _HELPS


class Words(Completer):
    """Columns of the topics that the statement names, topics, and words of SQL."""

    def __init__(self, names: Callable[[tuple[str, ...] | None], list[str]]) -> None:
        """`names`: tables, or columns of one."""
        self._names = names
        self._tables: list[str] = []
        self._columns: dict[tuple[str, ...], list[str]] = {}
        #: One question at a time: completion has a thread of its own.
        self._lock = Lock()

    def look(self) -> None:
        """Which tables there are now; their columns are asked for when they are needed."""
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
    """What is typed, a statement (or several) at a time, until the end."""
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(state_folder() / "sql_history")),
        auto_suggest=AutoSuggestFromHistory(),
        completer=words,
        complete_while_typing=False,
        complete_in_thread=True,  # the columns are asked of the registry
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
        """A whole statement is done; half of one goes on in the next line."""
        text = event.current_buffer.text.strip()
        if is_complete(text) or text.lower() in (*_ENDS, *_HELPS):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys

"""The prompt of `weir sql`: history, completion, statements over several lines."""

from collections.abc import Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from weir.cli.spark_side import state_folder
from weir.spark.sql.statements import is_complete

_WORDS = (
    *(
        "SELECT",
        "STREAM",
        "FROM",
        "WHERE",
        "GROUP BY",
        "HAVING",
        "ORDER BY",
        "LIMIT",
        "DISTINCT",
        "UNION ALL",
        "WITH",
    ),
    *("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "ON", "USING", "AS", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("AND", "OR", "NOT", "NULL", "IS", "IN", "LIKE", "BETWEEN", "INTERVAL", "WATERMARK", "DELAY OF", "EXPLAIN"),
    *("CREATE STREAM", "PAUSE STREAM", "RESUME STREAM", "DROP STREAM", "DESCRIBE STREAM", "SHOW STREAMS"),
    *("SHOW TABLES", "DESCRIBE", "IF EXISTS", "IF NOT EXISTS"),
    *("count", "sum", "avg", "min", "max", "window", "session_window", "window_time", "current_timestamp"),
    *("__key", "__offset", "__partition", "__topic", "__timestamp", "__headers"),
)
_ENDS = ("exit", "quit")


class Words(Completer):
    """Keywords and names of topics."""

    def __init__(self, topics: Callable[[], Iterable[str]]) -> None:
        self._topics = topics

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = document.get_word_before_cursor(WORD=True)
        if not word:
            return
        for one in [*self._topics(), *_WORDS]:
            if one.lower().startswith(word.lower()):
                yield Completion(one, start_position=-len(word))


def statements(topics: Callable[[], Iterable[str]]) -> Iterable[str]:
    """What is typed, a statement (or several) at a time, until the end."""
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(state_folder() / "sql_history")),
        auto_suggest=AutoSuggestFromHistory(),
        completer=Words(topics),
        complete_while_typing=False,
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
        if is_complete(text) or text.lower() in _ENDS:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys

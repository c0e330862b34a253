"""The prompt of `weir sql`: history, completion, statements over several lines."""

from collections.abc import Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from weir.cli.spark_side import state_folder
from weir.spark.sql.completion import completions
from weir.spark.sql.parsing import is_complete

_ENDS = ("exit", "quit")


class Words(Completer):
    """Columns of the topics that the statement names, topics, and words of SQL."""

    def __init__(
        self, topics: Callable[[], Iterable[str]], columns: Callable[[tuple[str, ...]], Iterable[str]]
    ) -> None:
        self._topics = topics
        self._columns = columns

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        found = completions(document.text, document.text_before_cursor, self._topics(), self._columns)
        for text, typed in found:
            yield Completion(text, start_position=-typed)


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
        if is_complete(text) or text.lower() in _ENDS:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys

"""A function's code: what is told of it without running it, and what is said of what cannot be loaded."""

import pytest

from weir.functions.function_code import Seen, load, look, said
from weir.model.errors import FunctionError


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("def f(message): return message", Seen(batch=False, stateful=False)),
        ("def f(message, context): context.state['n'] = 1", Seen(batch=False, stateful=True)),
        ("def f(batch): return batch", Seen(batch=True, stateful=False)),
        ("import pyarrow as pa\ndef f(rows: pa.RecordBatch): return rows", Seen(batch=True, stateful=False)),
        ("async def f(message): ...", Seen(batch=False, stateful=False)),
        ("from x import f", Seen(batch=False, stateful=False)),
        ("f: object = lambda message: message", Seen(batch=False, stateful=False)),
        ("try:\n  import x\nexcept ImportError:\n  def f(batch): ...", Seen(batch=True, stateful=False)),
        ("def f(*given): ...", Seen(batch=False, stateful=False)),
    ],
)
def test_the_text_tells_whether_it_is_of_batches_and_keeps_state(code: str, seen: Seen) -> None:
    assert look(code, "f.py", "f") == seen


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def f(message:", "is no Python"),
        ("def g(message): ...", "has no function f"),
        ("def f(): ...", "takes no message"),
        ("def f(message, context, third): ...", "wants more than a message and a context: third"),
        ("def f(message, *, limit): ...", "wants more than a message and a context: limit"),
    ],
)
def test_what_cannot_be_a_function_is_refused_before_it_is_deployed(code: str, why: str) -> None:
    with pytest.raises(FunctionError, match=why):
        look(code, "f.py", "f")


def test_code_that_fails_to_load_says_where() -> None:
    with pytest.raises(FunctionError, match=r"f\.py cannot be loaded: ZeroDivisionError.*line 2"):
        load("x = 1\n1 / 0\ndef f(message): ...", "f.py", "f")
    with pytest.raises(FunctionError, match="cannot be loaded: SystemExit"):
        load("import sys\nsys.exit(3)", "f.py", "f")
    with pytest.raises(FunctionError, match="no function f"):
        load("f = 3", "f.py", "f")
    with pytest.raises(FunctionError, match="no F can be made: ValueError: no config"):
        load("class F:\n  def __init__(self): raise ValueError('no config')", "f.py", "F")


@pytest.mark.parametrize("code", ["f = lambda a, b, c: a", "from re import sub as f"])
def test_what_cannot_be_called_with_a_message_is_told_before_any_comes(code: str) -> None:
    with pytest.raises(FunctionError, match="cannot be called with a message"):
        load(code, "f.py", "f")


def test_a_second_parameter_with_a_default_is_the_functions_own_unless_it_is_called_context() -> None:
    assert not load("def f(message, limit=10): ...", "f.py", "f").with_context
    assert load("def f(message, context=None): ...", "f.py", "f").with_context


def test_functions_methods_and_callable_classes_are_found() -> None:
    assert load("def f(message, context): ...", "f.py", "f").with_context
    assert load("class F:\n  def __call__(self, message): return 1", "f.py", "F").call(None) == 1
    assert load("class F:\n  @staticmethod\n  def g(message): return 2", "f.py", "F.g").call(None) == 2
    assert load("class F:\n  def g(self, message): return 3", "f.py", "F.g").call(None) == 3
    assert load("def f(rows: 'pa.RecordBatch'): ...", "f.py", "f").batch


def test_an_error_names_the_line_of_the_function() -> None:
    loaded = load("def f(message):\n    return message / 0", "mine.py", "f")
    with pytest.raises(ZeroDivisionError) as raised:
        loaded.call(1)
    assert said(raised.value, "mine.py") == "ZeroDivisionError: division by zero (mine.py, line 2)"

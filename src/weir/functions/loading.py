"""A function's code: what can be told without running it, and the function itself."""

import ast
import inspect
import linecache
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from weir.functions.talk import printable
from weir.model.errors import FunctionError

_BATCH = "RecordBatch"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the text says: whether the function is of Arrow batches, and whether it keeps state."""

    batch: bool
    stateful: bool


def look(code: str, file: str, entry: str) -> Seen:
    """FunctionError for what is no Python, or has no such function; nothing of it is run."""
    try:
        tree = ast.parse(code, file)
    except (SyntaxError, ValueError) as wrong:
        line = getattr(wrong, "lineno", None)
        raise FunctionError(
            f"{file} is no Python: {wrong.args[0]}" + (f" (line {line})" if line else "")
        ) from None
    names: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names |= {one.id: node for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).split(".")[0]: node for one in node.names}
    found = names.get(entry.split(".", maxsplit=1)[0])
    if found is None:
        known = [name for name, node in names.items() if isinstance(node, ast.FunctionDef)]
        hint = f"it has {', '.join(known[:5])}" if known else "define it there"
        raise FunctionError(f"{file} has no function {entry}", hint=hint)
    batch = False
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        first = [*found.args.posonlyargs, *found.args.args][:1]
        if not first:
            raise FunctionError(
                f"{entry} takes no message", hint="write def f(message), or def f(message, context)"
            )
        batch = _of_batches(first[0].arg, "" if first[0].annotation is None else ast.unparse(first[0].annotation))
    stateful = any(isinstance(node, ast.Attribute) and node.attr == "state" for node in ast.walk(tree))
    return Seen(batch, stateful)


def _of_batches(name: str, annotation: str) -> bool:
    return _BATCH in annotation or (name == "batch" and not annotation)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The function; whether it takes Arrow batches, and whether it wants the context."""

    call: Callable[..., Any]
    batch: bool
    with_context: bool


def load(code: str, file: str, entry: str, *, batch: bool | None = None) -> Loaded:
    """Run the file, and find the function in it; FunctionError says why that fails, with the place."""
    module = ModuleType("weir_function")
    module.__file__ = file
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module  # what it defines can be found again by its name
    try:
        exec(compile(code, file, "exec"), module.__dict__)  # noqa: S102
    except BaseException as failure:
        if isinstance(failure, KeyboardInterrupt | GeneratorExit):
            raise
        raise FunctionError(f"{file} cannot be loaded: {said(failure, file)}") from failure
    found: Any = module
    for part in entry.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise FunctionError(f"{file} has no function {entry}")
    try:
        given = [
            one
            for one in inspect.signature(found).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        given = []
    if batch is None:
        annotation = given[0].annotation if given else None
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        batch = bool(given) and _of_batches(given[0].name, "" if text == "_empty" else str(text))
    return Loaded(found, batch, len(given) > 1)


def said(failure: BaseException, file: str) -> str:
    """An exception in one line, with the last place in the function's own file."""
    text = type(failure).__name__
    with suppress(Exception):  # its words are the function's, too
        text = f"{text}: {failure}" if str(failure) else text
    place = ""
    trace = failure.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            place = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return printable(f"{text[:2_000]}{place}")

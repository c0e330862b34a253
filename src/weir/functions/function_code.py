"""A function's code: what can be told without running it, and the function itself."""

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from weir.functions.captured_output import printable
from weir.model.errors import FunctionError

_BATCH = "RecordBatch"
_WRITE = "write def f(message), or def f(message, context)"
#: A second parameter with a default is the context if it is called so; else it is the function's own.
_CONTEXT = ("context", "ctx")


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
    names = _names(tree.body)
    found = names.get(entry.split(".", maxsplit=1)[0])
    if found is None:
        known = [name for name, node in names.items() if isinstance(node, ast.FunctionDef)]
        hint = f"it has {', '.join(known[:5])}" if known else "define it there"
        raise FunctionError(f"{file} has no function {entry}", hint=hint)
    batch = False
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        first = _checked(found.args, entry)
        for one in first[:1]:
            batch = _of_batches(one.arg, "" if one.annotation is None else ast.unparse(one.annotation))
    stateful = any(isinstance(node, ast.Attribute) and node.attr == "state" for node in ast.walk(tree))
    return Seen(batch, stateful)


def _names(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """What a file defines, also within `if`, `try` and `with`."""
    names: dict[str, ast.AST] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names |= {one.id: node for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).split(".")[0]: node for one in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            handlers = [one.body for one in getattr(node, "handlers", [])]
            for part in (node.body, *handlers, getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                names |= _names(part)
    return names


def _checked(given: ast.arguments, entry: str) -> list[ast.arg]:
    """Its parameters by position; FunctionError unless it can be called with a message, or with a context too."""
    found = [*given.posonlyargs, *given.args]
    needed = len(found) - len(given.defaults)
    if not found and given.vararg is None:
        raise FunctionError(f"{entry} takes no message", hint=_WRITE)
    if needed > 2 or None in given.kw_defaults:
        more = [one.arg for one in found[2:needed]]
        more += [one.arg for one, usual in zip(given.kwonlyargs, given.kw_defaults, strict=True) if usual is None]
        raise FunctionError(f"{entry} wants more than a message and a context: {', '.join(more)}", hint=_WRITE)
    return found


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
    found = _found(module, file, entry)
    given = _parameters(found, entry)
    if batch is None:
        annotation = given[0].annotation if given else None
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        batch = bool(given) and _of_batches(given[0].name, "" if text == "_empty" else str(text))
    with_context = len(given) > 1 and (given[1].default is given[1].empty or given[1].name in _CONTEXT)
    return Loaded(found, batch, with_context)


def _found(module: ModuleType, file: str, entry: str) -> Callable[..., Any]:
    """What is called; of a class an object, or a method of one."""
    found: Any = module
    for part in entry.split("."):
        within, found = found, getattr(found, part, None)
        if isinstance(found, type) and entry.endswith(part):
            found = _made(found, file)
        elif isinstance(within, type) and inspect.isfunction(inspect.getattr_static(within, part, None)):
            found = getattr(_made(within, file), part)
    if not callable(found):
        raise FunctionError(f"{file} has no function {entry}", hint="give functions, or classes with __call__")
    called: Callable[..., Any] = found
    return called


def _made(found: type, file: str) -> Any:
    try:
        return found()
    except Exception as failure:
        raise FunctionError(f"{file}: no {found.__name__} can be made: {said(failure, file)}") from failure


def _parameters(call: Callable[..., Any], entry: str) -> list[inspect.Parameter]:
    """By position; FunctionError unless it can be called with a message, or with a context too."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # one that is not written in Python may not tell
        return []
    given = [
        one
        for one in signature.parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    for count in (1, 2):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return given
    raise FunctionError(
        f"{entry}{signature} cannot be called with a message, or a message and a context", hint=_WRITE
    )


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

"""The mutants of a module: each is its source with one small change, a mistake that a programmer could make."""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: Calls whose removal no test should notice.
_UNSEEN = ("log.", "check(", "logging.")
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
}


class _Edit(NamedTuple):
    """A change of one node of the tree: what replaces it."""

    node: ast.AST
    change: str
    replacement: Callable[[], ast.AST]


class Mutant(NamedTuple):
    """One change of a module. The name survives edits elsewhere in the module."""

    module: str
    function: str
    line: int
    change: str
    name: str
    tree: ast.Module
    edit: _Edit

    def source(self) -> str:
        return _edited(self.tree, self.edit)


def mutants_of(module: str, source: str) -> list[Mutant]:
    """In the order of the source."""
    tree = ast.parse(source)
    numbers: Counter[str] = Counter()
    found = []
    for function, edit in _edits_in(tree, ""):
        name = f"{module} {function}: {edit.change}"
        numbers[name] += 1
        if numbers[name] > 1:
            name = f"{name} ({numbers[name]})"
        line = getattr(edit.node, "lineno", 0)
        found.append(Mutant(module, function, line, edit.change, name, tree, edit))
    return found


def _edited(tree: ast.Module, edit: _Edit) -> str:
    """The source with the change. The tree is shared by all mutants, so it changes only until it is written."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is edit.node:
                setattr(parent, name, edit.replacement())
                source = ast.unparse(tree)
                setattr(parent, name, value)
                return source
            if isinstance(value, list) and any(each is edit.node for each in value):
                setattr(parent, name, [edit.replacement() if each is edit.node else each for each in value])
                source = ast.unparse(tree)
                setattr(parent, name, value)
                return source
    raise ValueError("the node is not in the tree")


def _edits_in(node: ast.AST, function: str) -> Iterator[tuple[str, _Edit]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and not _is_seen(child):
            continue
        name = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{function}.{child.name}" if function else child.name
        elif function and not isinstance(node, ast.ClassDef):
            for edit in _edits_of(child):
                yield function, edit
        if not isinstance(child, ast.arguments | ast.expr_context) and not _is_annotation(node, child):
            yield from _edits_in(child, name)


def _is_annotation(parent: ast.AST, child: ast.AST) -> bool:
    return child in (getattr(parent, "annotation", None), getattr(parent, "returns", None)) or (
        isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and child in parent.decorator_list
    )


def _edits_of(node: ast.AST) -> Iterator[_Edit]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() if not _is_opposite(node.test):
            yield _Edit(node, f"negate `{_text(node.test)}`", lambda: _with(node, test=_negated(node.test)))
        case ast.Compare(ops=[operator, *_]) if type(operator) in _COMPARISONS:
            swapped = _COMPARISONS[type(operator)]()
            changed = _with(node, ops=[swapped, *node.ops[1:]])
            yield _Edit(node, f"`{_text(node)}` -> `{_text(changed)}`", lambda: changed)
        case ast.BoolOp():
            other = _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            yield _Edit(node, f"`{_text(node)}` -> `{_text(other)}`", lambda: other)
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _ARITHMETIC and not _is_text(node):
            moved = _with(node, op=_ARITHMETIC[type(node.op)]())
            yield _Edit(node, f"`{_text(node)}` -> `{_text(moved)}`", lambda: moved)
        case ast.Constant(value=bool() as value):
            yield _Edit(node, f"{value} -> {not value}", lambda: ast.Constant(not value))
        case ast.Constant(value=int() as number):
            yield _Edit(node, f"{number} -> {number + 1}", lambda: ast.Constant(number + 1))
        case ast.Break():
            yield _Edit(node, "break -> continue", ast.Continue)
        case ast.Continue():
            yield _Edit(node, "continue -> break", ast.Break)
        case ast.Return(value=ast.expr() as result) if not _is_none(result):
            yield _Edit(node, f"`{_text(node)}` -> return None", lambda: ast.Return(ast.Constant(None)))
        case ast.Await(value=ast.Call()):
            yield _Edit(node, f"`{_text(node)}` -> None, not called", lambda: ast.Constant(None))
    if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise | ast.Return) and _is_seen(
        node
    ):
        yield _Edit(node, f"remove `{_text(node)}`", ast.Pass)


def _is_opposite(test: ast.expr) -> bool:
    """Whether the mutant of the comparison is the negation already."""
    kinds = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], kinds)


def _is_seen(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await) and not _text(node).startswith(_UNSEEN)
    return True


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in parts
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())

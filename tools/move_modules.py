"""Move and merge modules of `src/weir` according to a map, and rewrite every import of them.

    tools/move_modules.py MAP.tsv [MAP.tsv ...]            # report only
    tools/move_modules.py --only weir.meta --write MAP.tsv # change the checkout

A line of a map is `target<TAB>source, source {name, name}, ...`, with module names below `weir`. The tool
ignores a number behind a source (its lines) and a numeric second column. `{names}` moves only these names of a
source; all other lines move it whole. A source that is named like a package means its `__init__`.

The tool works on a whole checkout: src, tests, bench, tools, docs and settings. Modules that no line names stay.
It resolves an imported name to the module that defines it, and it orders the parts of a merged module by their
imports of each other. Run ruff (`check --fix --select I,F401`, `format`) and mypy afterwards. The report lists
the decisions that a person should read:

- `clash`: two parts of a target bind one name differently; the name of the smaller part gets a prefix;
- `alias`: an import of a whole module keeps the module's old name as alias;
- `unknown`: the map names a module or a name that does not exist;
- `split`: an importer uses a split module as a value;
- `leftover`: several targets use a name of a split module that no line moves;
- `cycle`: parts of a target import each other;
- `package`: a target is both a module and a package.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import libcst as cst
from libcst import metadata

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "weir"
_OUTSIDE = ("tests", "bench", "tools", "docs")
_TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".sh",
    ".cfg",
    ".txt",
    ".html",
    ".properties",
    ".service",
}


@dataclass(frozen=True)
class Part:
    """A source module of a target, or some names of it."""

    module: str
    names: frozenset[str] | None = None


Plan = dict[str, list[Part]]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def read_maps(paths: Sequence[Path], only: str | None = None) -> Plan:
    plan: Plan = {}
    for path in paths:
        for line in path.read_text().splitlines():
            columns = line.split("\t")
            if len(columns) < 2 or columns[0] in ("", "target") or columns[0].startswith("#"):
                continue
            target = f"{PACKAGE}.{columns[0].strip()}"
            parts = list(_parts(columns[-1]))
            if parts and (only is None or any(f"{each.module}.".startswith(f"{only}.") for each in parts)):
                plan.setdefault(target, []).extend(parts)
    return plan


def _parts(text: str) -> Iterator[Part]:
    for found in re.finditer(r"([a-z_0-9.]+)(?:\s+\d+)?\s*(?:\{([^}]*)\})?(?:,|$)", text.strip()):
        if found[1].isdigit():
            continue
        names = frozenset(each.strip() for each in found[2].split(",")) if found[2] is not None else None
        yield Part(f"{PACKAGE}.{found[1]}", names)


# --- what a module binds ---


@dataclass(frozen=True)
class Origin:
    """Where a binding comes from: a definition (`name`), or a module as a whole (`name` is None)."""

    module: str
    name: str | None


@dataclass
class Source:
    """A parsed module of the checkout."""

    name: str
    path: Path
    tree: cst.Module
    is_package: bool
    definitions: dict[str, cst.CSTNode] = field(default_factory=dict)
    imports: dict[str, Origin] = field(default_factory=dict)  # at the top level, conditional ones included
    needs: set[str] = field(default_factory=set)  # modules that it imports when it is imported


def load(root: Path) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for path in sorted((root / "src" / PACKAGE).rglob("*.py")):
        dotted = ".".join(path.relative_to(root / "src").with_suffix("").parts)
        is_package = path.name == "__init__.py"
        name = dotted.removesuffix(".__init__")
        sources[name] = Source(name, path, cst.parse_module(path.read_text()), is_package)
    for source in sources.values():
        _bindings(source, sources)
    return sources


def _bindings(source: Source, sources: Mapping[str, Source]) -> None:
    for statement in source.tree.body:
        for node in _top_level(statement):
            if isinstance(node, cst.ImportFrom):
                _note_imports(source, sources, node, at_run_time=not _is_type_checking(statement))
            elif isinstance(node, cst.Import):
                for each in node.names:
                    dotted = _dotted(each.name)
                    bound = _name(each.asname) if each.asname else dotted.split(".")[0]
                    source.imports[bound] = Origin(dotted if each.asname else bound, None)
            else:
                for bound in _defined_by(node):
                    source.definitions.setdefault(bound, statement)


def _note_imports(
    source: Source, sources: Mapping[str, Source], node: cst.ImportFrom, *, at_run_time: bool
) -> None:
    module = module_of(node)
    needs = {module}
    for name, alias in names_of(node):
        whole = f"{module}.{name}"
        if whole in sources:
            needs.add(whole)
            source.imports[alias or name] = Origin(whole, None)
        else:
            source.imports[alias or name] = Origin(module, name)
    if at_run_time:
        source.needs |= needs


def _defined_by(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.TypeAlias):
        yield node.name.value
    elif isinstance(node, cst.Assign):
        for target in node.targets:
            yield from _bound_names(target.target)
    elif isinstance(node, cst.AnnAssign | cst.AugAssign):
        yield from _bound_names(node.target)


_BLOCKS = (
    cst.If,
    cst.Else,
    cst.Try,
    cst.ExceptHandler,
    cst.Finally,
    cst.With,
    cst.For,
    cst.While,
    cst.IndentedBlock,
)


def _top_level(statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The simple statements and definitions of the top level, those below `if` and `try` included."""
    if isinstance(statement, cst.SimpleStatementLine):
        yield from statement.body
    elif isinstance(statement, cst.FunctionDef | cst.ClassDef):
        yield statement
    elif isinstance(statement, _BLOCKS):
        for child in statement.children:
            yield from _top_level(child)


def _is_type_checking(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.If)
        and isinstance(statement.test, cst.Name)
        and statement.test.value == "TYPE_CHECKING"
    )


def _bound_names(target: cst.BaseExpression) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for each in target.elements:
            yield from _bound_names(each.value)


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    assert isinstance(node, cst.Name)
    return node.value


def _name(asname: cst.AsName) -> str:
    assert isinstance(asname.name, cst.Name)
    return asname.name.value


def module_of(node: cst.ImportFrom) -> str:
    """The module of `from module import ...`; a relative one, which only some tests have, begins with dots."""
    return "." * len(node.relative) + (_dotted(node.module) if node.module is not None else "")


def names_of(node: cst.ImportFrom) -> list[tuple[str, str | None]]:
    if isinstance(node.names, cst.ImportStar):
        return []
    return [(_dotted(each.name), _name(each.asname) if each.asname else None) for each in node.names]


# --- where everything goes ---


class Destinations:
    """Where modules and names of the old tree are in the new one."""

    def __init__(self, plan: Plan, sources: Mapping[str, Source], root: Path) -> None:
        self.sources = sources
        self.report: list[str] = []
        self.plan: Plan = {}
        self._targets: dict[str, list[tuple[Part, str]]] = {}  # by source module
        for target, parts in plan.items():
            known = [part for part in parts if self._is_known(part, target)]
            if known:
                self.plan[target] = known
            for part in known:
                self._targets.setdefault(part.module, []).append((part, target))
        self.copied: set[Origin] = set()  # loggers: each target of a split has its own
        self._leftovers: dict[Origin, str] = {}
        self._check_splits()
        self._mentioned: re.Pattern[str] | None = None
        self.renamed: dict[Origin, str] = {}
        self.local: dict[tuple[str, str], str] = {}  # (source, binding) -> other name within the target
        self.mentions = Mentions(self, root)
        for target in self.plan:
            self._bind(target)

    def _is_known(self, part: Part, target: str) -> bool:
        if part.module not in self.sources:
            self.report.append(f"unknown: {part.module} (to {target})")
            return False
        for name in sorted(part.names or ()):
            if name not in self.sources[part.module].definitions:
                self.report.append(f"unknown: {part.module}.{name} (to {target})")
        return True

    def _check_splits(self) -> None:
        for module, places in self._targets.items():
            if len(places) < 2 and all(part.names is None for part, _ in places):
                continue
            if any(part.names is None for part, _ in places):
                continue
            source = self.sources[module]
            named = {name: target for part, target in places for name in part.names or ()}
            left = [name for name in source.definitions if name not in named]
            for name in reversed(left):  # later ones may use earlier ones
                users = {
                    target
                    for other, target in named.items()
                    if other in source.definitions
                    and name in _words(source.tree.code_for_node(source.definitions[other]))
                }
                if len(users) > 1 and _is_logger(source.definitions[name]):
                    self.copied.add(Origin(module, name))
                named[name] = min(users) if users else places[0][1]
                self._leftovers[Origin(module, name)] = named[name]
                if len(users) != 1:
                    self.report.append(f"leftover: {module}.{name} goes to {named[name]}")

    def moved(self, module: str) -> bool:
        return module in self._targets

    def concerns(self, code: str) -> bool:
        """Whether a module with this text may import something that moves."""
        if self._mentioned is None:
            named = {*self._targets, *(module.rpartition(".")[0] for module in self._targets)}

            named = {each for each in named if each != PACKAGE} if PACKAGE not in self._targets else named
            self._mentioned = re.compile(rf"\b(?:from|import)\s+(?:{'|'.join(map(re.escape, sorted(named)))})\b")
        return self._mentioned.search(code) is not None

    def target_of(self, module: str, name: str) -> str:
        """The new module of a definition."""
        places = self._targets.get(module)
        if places is None:
            return module
        if (left := self._leftovers.get(Origin(module, name))) is not None:
            return left
        rest = [target for part, target in places if part.names is None]
        for part, target in places:
            if part.names is not None and name in part.names:
                return target
        return rest[0] if rest else places[0][1]

    def is_in(self, module: str, name: str, target: str) -> bool:
        return self.target_of(module, name) == target or Origin(module, name) in self.copied

    def module_target(self, module: str) -> str:
        """The new module of most of an old one."""
        places = self._targets.get(module)
        if places is None:
            return module
        rest = [target for part, target in places if part.names is None]
        return rest[0] if rest else max(places, key=lambda each: len(each[0].names or ()))[1]

    def is_split(self, module: str) -> bool:
        return len({target for _, target in self._targets.get(module, ())}) > 1

    def origin(self, module: str, name: str, *, through_packages: bool = False) -> Origin:
        """The module that defines an imported name; a package that stays keeps its re-exports."""
        seen = set()
        while (source := self.sources.get(module)) is not None and (module, name) not in seen:
            seen.add((module, name))
            if name in source.definitions or name not in source.imports:
                break
            if not self.moved(module) and source.is_package and not through_packages:
                break
            further = source.imports[name]
            if further.module.split(".")[0] != PACKAGE:
                break
            if further.name is None:
                return further
            module, name = further.module, further.name
        return Origin(module, name)

    def new_name(self, origin: Origin) -> str:
        assert origin.name is not None
        return self.renamed.get(origin, origin.name)

    def parts_in_order(self, target: str) -> list[Part]:
        """The parts of a target, what is imported by another part first."""
        parts = self.plan[target]
        by_module: dict[str, list[Part]] = {}
        for part in parts:
            by_module.setdefault(part.module, []).append(part)
        graph = {
            module: {need for need in self.sources[module].needs if need in by_module and need != module}
            for module in by_module
        }
        try:
            order = list(TopologicalSorter(graph).static_order())
        except CycleError as cycle:
            self.report.append(f"cycle: {target}: {cycle.args[1]}")
            order = list(by_module)
        return [part for module in order for part in by_module[module]]

    def _bind(self, target: str) -> None:
        """Give each binding of a target one meaning; the largest part keeps its names."""
        taken: dict[str, Origin] = {}
        texts: dict[str, str] = {}
        used = self._identifiers(target)
        by_size = sorted(self.plan[target], key=lambda part: -len(self.sources[part.module].tree.code))
        for part in by_size:  # definitions come before imports: an alias is easier to change
            for name, node in self.sources[part.module].definitions.items():
                if part.names is not None and name not in part.names and not self.is_in(part.module, name, target):
                    continue
                origin = Origin(part.module, name)
                text = self.sources[part.module].tree.code_for_node(node).strip()
                if name not in taken:
                    taken[name], texts[name] = origin, text
                elif taken[name] != origin and texts[name] != text:
                    other = self._free_name(name, part.module, used | taken.keys())
                    self.report.append(
                        f"clash: {target}: {name} of {part.module} -> {other} (also of {taken[name].module})"
                    )
                    self.renamed[origin] = self.local[part.module, name] = other
                    taken[other], texts[other] = origin, text
        for part in by_size:
            for name, origin in self._outside(part.module, target):
                if taken.setdefault(name, origin) != origin:
                    other = self._free_name(name, origin.module, used | taken.keys())
                    self.report.append(f"clash: {target}: import of {name} in {part.module} -> {other}")
                    self.local[part.module, name] = other
                    taken[other] = origin

    def _outside(self, module: str, target: str) -> Iterator[tuple[str, Origin]]:
        """Imported names of a part that the target does not define."""
        source = self.sources[module]
        for name, imported in source.imports.items():
            origin = imported
            if imported.name is not None:
                origin = self.origin(imported.module, imported.name, through_packages=True)
            inside = origin.name is not None and self.target_of(origin.module, origin.name) == target
            if not inside and name not in source.definitions:  # `try: import x; except ImportError: x = None`
                yield name, origin

    def _identifiers(self, target: str) -> set[str]:
        found: set[str] = set()
        for part in self.plan[target]:
            found |= set(re.findall(r"[A-Za-z_]\w*", self.sources[part.module].tree.code))
        return found

    def _free_name(self, name: str, module: str, used: set[str]) -> str:
        parts = module.split(".")
        for depth in range(1, len(parts)):
            stem = "_".join(parts[-depth:])
            bare = name.lstrip("_")
            if bare.isupper():
                other = f"{stem.upper()}_{bare}"
            elif bare[:1].isupper():
                other = "".join(each.capitalize() for each in stem.split("_")) + bare
            else:
                other = f"{stem}_{bare}"
            other = "_" * (len(name) - len(bare)) + other
            if other not in used:
                return other
        return f"{name}_of_{parts[-1]}"


# --- rewriting ---


class _Rewriter(cst.CSTTransformer):
    """Rewrites imports and references of one module; `here` is its new name."""

    METADATA_DEPENDENCIES = (metadata.ScopeProvider, metadata.ParentNodeProvider)

    def __init__(self, places: Destinations, here: str, source: Source | None) -> None:
        super().__init__()
        self._places = places
        self._here = here
        self._source = source
        self._renames: dict[cst.Name, str] = {}
        self._members: dict[cst.Attribute, str] = {}  # `module.name` that becomes `name`
        self._renamed_members: dict[cst.Attribute, str] = {}  # `module.name` that becomes `module.other`
        self._needed: dict[str, set[str]] = {}  # names of a split module, by the alias that it had
        self._aliases: dict[str, str] = {}  # new alias of a module import, by its old one

    def visit_Module(self, node: cst.Module) -> bool:
        scopes = {
            scope for scope in self.metadata[metadata.ScopeProvider].values() if isinstance(scope, metadata.Scope)
        }
        words = _words(node.code)
        for scope in scopes:
            for assignment in scope.assignments:
                self._see_module(assignment, words)
        for scope in scopes:
            for assignment in scope.assignments:
                other = self._other_name(scope, assignment)
                if other is None:
                    continue
                for access in assignment.references:
                    if isinstance(access.node, cst.Name) and access.node.value == assignment.name:
                        self._renames[access.node] = other
                    elif isinstance(access.node, cst.Attribute):
                        first: cst.BaseExpression = access.node
                        while isinstance(first, cst.Attribute):
                            first = first.value
                        if isinstance(first, cst.Name) and first.value == assignment.name:
                            self._renames[first] = other
                if isinstance(assignment, metadata.Assignment):
                    name = getattr(assignment.node, "name", assignment.node)
                    if isinstance(name, cst.Name) and not isinstance(assignment.node, cst.ImportFrom | cst.Import):
                        self._renames[name] = other
        return True

    def _see_module(self, assignment: metadata.BaseAssignment, words: set[str]) -> None:
        """Decide how an import of a whole module continues: under the module's new name, or as names of it."""
        if not isinstance(assignment, metadata.Assignment) or not isinstance(assignment.node, cst.ImportFrom):
            return
        for name, alias in names_of(assignment.node):
            whole = f"{module_of(assignment.node)}.{name}"
            if (
                (alias or name) != assignment.name
                or whole not in self._places.sources
                or not self._places.moved(whole)
            ):
                continue
            target = self._places.module_target(whole)
            stem = target.rpartition(".")[2]
            if target == self._here or self._places.is_split(whole):
                self._dissolve(assignment, whole)
                continue
            for member in self._members_of(assignment):
                origin = self._places.origin(whole, member.attr.value) if member else None
                if member and origin and origin.name and (new := self._places.new_name(origin)) != origin.name:
                    self._renamed_members[member] = new
            if alias is None and stem != name and stem not in words:
                self._aliases[name] = stem
            elif alias is None and stem != name:
                self._places.report.append(f"alias: {self._here or 'a test'} imports {target} as {name}")

    def _dissolve(self, assignment: metadata.Assignment, module: str) -> None:
        """Use the names of a module that is part of this one, or that was split, without the module's name."""
        needed = self._needed.setdefault(assignment.name, set())
        for member in self._members_of(assignment):
            if member is None:
                self._places.report.append(f"split: {self._here} uses {module} as a value")
                continue
            needed.add(member.attr.value)
            self._members[member] = self._places.new_name(self._places.origin(module, member.attr.value))

    def _members_of(self, assignment: metadata.Assignment) -> Iterator[cst.Attribute | None]:
        """Each `module.name`; None for a use of the module without a name."""
        for access in assignment.references:
            parent = self.get_metadata(metadata.ParentNodeProvider, access.node, None)
            node = access.node if isinstance(access.node, cst.Attribute) else parent
            while isinstance(node, cst.Attribute) and not isinstance(node.value, cst.Name):
                node = node.value
            yield node if isinstance(node, cst.Attribute) else None

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if (name := self._members.get(original_node)) is not None:
            return cst.Name(name)
        if (name := self._renamed_members.get(original_node)) is not None:
            return updated_node.with_changes(attr=cst.Name(name))
        return updated_node

    def _other_name(self, scope: metadata.Scope, assignment: metadata.BaseAssignment) -> str | None:
        """The new name of a binding, None if it keeps its own."""
        is_import = isinstance(assignment, metadata.Assignment) and isinstance(
            assignment.node, cst.ImportFrom | cst.Import
        )
        if isinstance(scope, metadata.GlobalScope) and self._source is not None:
            other = self._places.local.get((self._source.name, assignment.name))
            if other is not None:
                return other
        if is_import and isinstance(assignment.node, cst.ImportFrom):  # type: ignore[attr-defined]
            node = assignment.node  # type: ignore[attr-defined]
            for name, alias in names_of(node):
                if (alias or name) != assignment.name:
                    continue
                module = module_of(node)
                if f"{module}.{name}" in self._places.sources:
                    return self._aliases.get(assignment.name)
                origin = self._places.origin(module, name)
                if origin.name is None:
                    return None
                new = self._places.new_name(origin)
                here = self._places.target_of(origin.module, origin.name) == self._here
                if (here and new != assignment.name) or (alias is None and new != name):
                    return new
        return None

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        other = self._renames.get(original_node)
        return updated_node if other is None else updated_node.with_changes(value=other)

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        """A TypeVar is told its own name."""
        first, value = updated_node.targets[0].target, updated_node.value
        if (
            isinstance(first, cst.Name)
            and isinstance(value, cst.Call)
            and isinstance(value.func, cst.Name)
            and value.func.value in ("TypeVar", "ParamSpec", "NewType")
            and isinstance(value.args[0].value, cst.SimpleString)
        ):
            named = value.args[0].with_changes(value=cst.SimpleString(f'"{first.value}"'))
            return updated_node.with_changes(value=value.with_changes(args=[named, *value.args[1:]]))
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.ImportFrom | cst.Import):
            return updated_node
        statement = original_node.body[0]
        new = list(self._new_imports(statement))
        if new == [statement]:
            return updated_node.with_changes(body=[statement])
        if not new:
            return cst.RemoveFromParent()
        lines = [cst.SimpleStatementLine([each]) for each in new]
        lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
        lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        return updated_node.with_changes(value=self._places.mentions.replace(updated_node.value))

    def leave_FormattedStringText(
        self, original_node: cst.FormattedStringText, updated_node: cst.FormattedStringText
    ) -> cst.FormattedStringText:
        return updated_node.with_changes(value=self._places.mentions.replace(updated_node.value))

    def leave_Comment(self, original_node: cst.Comment, updated_node: cst.Comment) -> cst.Comment:
        return updated_node.with_changes(value=self._places.mentions.replace(updated_node.value))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        if updated_node.body:
            return updated_node
        return updated_node.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])

    def _new_imports(self, node: cst.ImportFrom | cst.Import) -> Iterator[cst.ImportFrom | cst.Import]:
        if isinstance(node, cst.Import):
            yield self._new_plain_import(node)
            return
        module = module_of(node)
        pairs = names_of(node)
        if not pairs:
            yield node
            return
        if module.split(".")[0] != PACKAGE:
            names = [(name, self._bound_here(name, alias)) for name, alias in pairs]
            yield node if names == pairs else import_from(module, names)
            return
        by_module: dict[str, list[tuple[str, str | None]]] = {}
        for name, alias in pairs:
            whole = f"{module}.{name}"
            if (alias or name) in self._needed and whole in self._places.sources:
                for each in sorted(self._needed[alias or name]):
                    place = self._new_place(whole, each, None)
                    if place is not None:
                        by_module.setdefault(place[0], []).append((place[1], place[2]))
                continue
            place = self._new_place(module, name, alias)
            if place is not None:
                by_module.setdefault(place[0], []).append((place[1], place[2]))
        if list(by_module) == [module] and by_module[module] == pairs:
            yield node
            return
        for target, names in by_module.items():
            yield import_from(target, names)

    def _new_place(self, module: str, name: str, alias: str | None) -> tuple[str, str, str | None] | None:
        """The module, name and alias that an imported name has now; None if it is a definition of this module."""
        whole = f"{module}.{name}"
        bound = alias or name
        local = self._places.local.get((self._source.name, bound)) if self._source else None
        if whole in self._places.sources:
            target = self._places.module_target(whole)
            package, _, stem = target.rpartition(".")
            wanted = local or self._aliases.get(bound, bound)
            return package, stem, wanted if wanted != stem else None
        origin = self._places.origin(module, name)
        if origin.name is None:
            package, _, stem = self._places.module_target(origin.module).rpartition(".")
            return package, stem, bound if bound != stem else None
        target = self._places.target_of(origin.module, origin.name)
        new = self._places.new_name(origin)
        if target == self._here:
            return None
        if local is not None:
            return target, new, local if local != new else None
        return target, new, alias if alias is not None and (alias != new or alias == name) else None

    def _bound_here(self, name: str, alias: str | None) -> str | None:
        """The alias of an imported name, if another part of the target binds its name otherwise."""
        local = self._places.local.get((self._source.name, alias or name)) if self._source else None
        return local or alias

    def _new_plain_import(self, node: cst.Import) -> cst.Import:
        names = []
        for each in node.names:
            dotted = _dotted(each.name)
            target = self._places.module_target(dotted)
            new = each.with_changes(name=_expression(target)) if target != dotted else each
            alias = _name(each.asname) if each.asname else None
            if "." not in dotted and (bound := self._bound_here(dotted, alias)) != alias and bound is not None:
                new = new.with_changes(asname=cst.AsName(cst.Name(bound)))
            names.append(new)
        return node.with_changes(names=names)


def import_from(module: str, names: Sequence[tuple[str, str | None]]) -> cst.ImportFrom:
    return cst.ImportFrom(
        module=_expression(module),
        names=[
            cst.ImportAlias(cst.Name(name), cst.AsName(cst.Name(alias)) if alias else None)
            for name, alias in sorted(set(names), key=lambda each: (each[0], each[1] or ""))
        ],
    )


def _expression(dotted: str) -> cst.Attribute | cst.Name:
    first, *rest = dotted.split(".")
    node: cst.Attribute | cst.Name = cst.Name(first)
    for each in rest:
        node = cst.Attribute(node, cst.Name(each))
    return node


def rewrite(tree: cst.Module, places: Destinations, here: str, source: Source | None) -> cst.Module:
    code, moved = tree.code, source is not None and places.moved(source.name)
    if not moved and not places.concerns(code) and places.mentions.replace(code) == code:
        return tree
    wrapper = metadata.MetadataWrapper(tree, unsafe_skip_copy=True)
    return wrapper.visit(_Rewriter(places, here, source))


# --- composing ---


class _Composition:
    """A new module while its parts are added: docstrings, imports, then the other statements."""

    def __init__(self) -> None:
        self._docstrings: list[tuple[int, str]] = []
        self._header: list[cst.EmptyLine] = []
        self._imports: dict[str, cst.SimpleStatementLine] = {}
        self._typing_imports: dict[str, cst.CSTNode] = {}
        self._body: dict[str, Statement] = {}  # by its text: two parts may have the same TypeVar
        self._bound: set[str] = set()  # by imports; `Destinations` made sure that a name has one meaning

    def add_head(self, source: Source, *, whole: bool) -> None:
        if (docstring := source.tree.get_docstring()) is not None:
            self._docstrings.append((len(source.tree.code) if whole else 0, docstring))
        self._header.extend(line for line in source.tree.header if line.comment is not None)

    def add(self, statement: Statement) -> None:
        if _is_import(statement):
            self._add_import(cst.ensure_type(statement, cst.SimpleStatementLine))
        elif isinstance(statement, cst.If) and _is_type_checking(statement):
            for each in statement.body.body:
                if not isinstance(each, cst.SimpleStatementLine) or not isinstance(each.body[0], cst.Pass):
                    self._typing_imports.setdefault(_code(each), each)
        else:
            self._body.setdefault(_code(statement), statement)

    def _add_import(self, line: cst.SimpleStatementLine) -> None:
        if (new := _unbound(line, self._bound)) is not None:
            self._imports.setdefault(_code(new), new)

    def text(self) -> str:
        ordered = [text for _, text in sorted(self._docstrings, key=lambda each: -each[0])]
        text = "".join(cst.Module([], header=[line]).code for line in self._header)
        text += _docstring("\n\n".join(dict.fromkeys(ordered))) + "\n"
        for line in self._imports.values():
            text += cst.Module([line.with_changes(leading_lines=_comments(line))]).code
        typing_lines = [
            line for code in self._typing_imports if code not in self._imports for line in code.splitlines()
        ]
        if typing_lines:
            text += "\nif TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in typing_lines)
        return text + "\n\n" + cst.Module(list(self._body.values())).code.lstrip("\n")


def compose(target: str, places: Destinations) -> str:
    """The text of a new module."""
    new = _Composition()
    for part in places.parts_in_order(target):
        source = places.sources[part.module]
        new.add_head(source, whole=part.names is None)
        kept = _kept(source, places, target)
        if places.is_split(part.module):
            for line in _from_other_halves(source, kept, places, target):
                new.add(line)
        for statement in _rewritten(source.tree, rewrite(source.tree, places, target, source), kept):
            new.add(statement)
    return new.text()


def _code(statement: cst.CSTNode) -> str:
    return cst.Module([statement]).code.strip()  # type: ignore[list-item]


def _unbound(line: cst.SimpleStatementLine, bound: set[str]) -> cst.SimpleStatementLine | None:
    """An import without the names that another import binds already."""
    node = line.body[0]
    if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return line
    names = [(name, alias) for name, alias in names_of(node) if (alias or name) not in bound]
    bound.update(alias or name for name, alias in names)
    if not names:
        return None
    return line.with_changes(body=[import_from(module_of(node), names)])


def _comments(line: cst.SimpleStatementLine) -> list[cst.EmptyLine]:
    return [each for each in line.leading_lines if each.comment is not None]


def _docstring(text: str) -> str:
    if not text:
        return ""
    quoted = text.replace("\\", "\\\\") if "\\" in text else text
    return f'"""{quoted}"""\n' if "\n" not in quoted else f'"""{quoted}\n"""\n'


def _kept(source: Source, places: Destinations, target: str) -> set[int]:
    """Indices of the statements of a source that belong to this target."""
    kept = set()
    for index, statement in enumerate(source.tree.body):
        if index == 0 and source.tree.get_docstring() is not None:
            continue
        bound = [name for name, node in source.definitions.items() if node is statement]
        if bound and not any(places.is_in(source.name, name, target) for name in bound):
            continue
        kept.add(index)
    return kept


def _from_other_halves(
    source: Source, kept: set[int], places: Destinations, target: str
) -> Iterator[cst.SimpleStatementLine]:
    """Imports of the names that statements of a split module use, and that went to another target."""
    used = set().union(*(_words(source.tree.code_for_node(source.tree.body[index])) for index in kept))
    for name in sorted(used & source.definitions.keys()):
        if not places.is_in(source.name, name, target):
            new = places.new_name(Origin(source.name, name))
            other = places.target_of(source.name, name)
            yield cst.SimpleStatementLine([import_from(other, [(new, name if name != new else None)])])


def _rewritten(old: cst.Module, new: cst.Module, kept: set[int]) -> Iterator[Statement]:
    """Statements of the rewritten tree whose originals are kept. Imports may have become several, or none."""
    rest = iter(new.body)
    waiting = next(rest, None)
    for index, statement in enumerate(old.body):
        if _is_import(statement):
            continue
        while waiting is not None and _is_import(waiting):
            yield waiting
            waiting = next(rest, None)
        if index in kept and waiting is not None:
            yield waiting
        waiting = next(rest, None)
    while waiting is not None:
        yield waiting
        waiting = next(rest, None)


def _words(code: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code))


def _is_logger(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and "getLogger(" in cst.Module([node]).code


def _is_import(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.ImportFrom | cst.Import)
    )


# --- the checkout ---


def path_of(module: str, root: Path, *, is_package: bool) -> Path:
    base = root / "src" / Path(*module.split("."))
    return base / "__init__.py" if is_package else base.with_suffix(".py")


def new_files(places: Destinations, root: Path) -> dict[Path, str | None]:
    """Contents of all files that change; None for a deleted file. Processes of a pool rewrite the files."""
    files: dict[Path, str | None] = {
        source.path: None for module, source in places.sources.items() if places.moved(module)
    }
    kept = [module for module in places.sources if not places.moved(module)]
    outside = [path for folder in _OUTSIDE for path in sorted((root / folder).rglob("*.py"))]
    jobs: list[Callable[[], tuple[Path, str | None]]] = [
        *(partial(_rewritten_module, places, module) for module in kept),
        *(partial(_composed_target, places, target, root) for target in places.plan),
        *(partial(_rewritten_outside, places, path) for path in outside if path != Path(__file__).resolve()),
    ]
    global _pool_work  # noqa: PLW0603 - inherited by the forked processes, because a plan is too large to pickle
    _pool_work = (places, jobs)
    with multiprocessing.get_context("fork").Pool() as pool:
        for path, text, report in pool.imap_unordered(_run_job, range(len(jobs)), chunksize=8):
            places.report += report
            if text is not None:
                files[path] = text
    written = [path for path, text in files.items() if text is not None]
    for folder in {folder for path in written for folder in _packages(path, root)}:
        marker = folder / "__init__.py"
        if files.get(marker, "") is None or not (marker.exists() or marker in files):
            files[marker] = files.get(marker) or ""
    return files


_pool_work: tuple[Destinations, Sequence[Callable[[], tuple[Path, str | None]]]]


def _run_job(index: int) -> tuple[Path, str | None, list[str]]:
    places, jobs = _pool_work
    known = len(places.report)
    path, text = jobs[index]()
    return path, text, places.report[known:]


def _rewritten_module(places: Destinations, module: str) -> tuple[Path, str | None]:
    source = places.sources[module]
    code = rewrite(source.tree, places, module, source).code
    return source.path, code if code != source.tree.code else None


def _composed_target(places: Destinations, target: str, root: Path) -> tuple[Path, str | None]:
    parts = places.plan[target]
    path = path_of(target, root, is_package=_is_package(target, places))
    if len(parts) == 1 and parts[0].names is None:
        source = places.sources[parts[0].module]
        return path, rewrite(source.tree, places, target, source).code
    return path, compose(target, places)


def _rewritten_outside(places: Destinations, path: Path) -> tuple[Path, str | None]:
    code = path.read_text()
    if PACKAGE not in code:
        return path, None
    new = rewrite(cst.parse_module(code), places, "", None).code
    return path, new if new != code else None


def _is_package(target: str, places: Destinations) -> bool:
    stays = (module for module in places.sources if not places.moved(module))
    above = any(other.startswith(f"{target}.") for other in (*places.plan, *stays))
    of_packages = all(places.sources[part.module].is_package for part in places.plan[target])
    if above and not of_packages:
        places.report.append(f"package: {target} is a module and a package")
    return above and of_packages


def _packages(path: Path, root: Path) -> Iterator[Path]:
    folder = path.parent
    while folder != root / "src" and (root / "src") in folder.parents:
        yield folder
        folder = folder.parent


class Mentions:
    """Names of modules and files in text: strings, docs, settings."""

    def __init__(self, places: Destinations, root: Path) -> None:
        self._places = places
        self._root = root
        moved = [module for module in places.sources if places.moved(module)]
        dotted = "|".join(re.escape(each) for each in sorted(moved, key=len, reverse=True))
        self._dotted = re.compile(rf"\b({dotted})\b(?:([.:])([A-Za-z_]\w*))?(?!\w)") if moved else None
        files = {self._file(module): module for module in moved}
        self._files = files
        paths = "|".join(re.escape(each) for each in sorted(files, key=len, reverse=True))
        self._paths = re.compile(rf"(?:(?<=src/)|(?<![\w/]))(?:{paths})(?!\w)") if files else None

    def _file(self, module: str) -> str:
        return str(self._places.sources[module].path.relative_to(self._root / "src"))

    def replace(self, text: str) -> str:
        if self._dotted is not None:
            text = self._dotted.sub(self._module, text)
        if self._paths is not None:
            text = self._paths.sub(self._path, text)
        return text

    def _module(self, found: re.Match[str]) -> str:
        module, mark, name = found[1], found[2], found[3]
        whole = f"{module}.{name}"
        if mark is None or name is None:
            return self._places.module_target(module)
        if mark == "." and whole in self._places.sources:
            return f"{self._places.module_target(whole)}"
        if name in self._places.sources[module].definitions:
            target = self._places.target_of(module, name)
            return f"{target}{mark}{self._places.new_name(Origin(module, name))}"
        return f"{self._places.module_target(module)}{mark}{name}"

    def _path(self, found: re.Match[str]) -> str:
        module = self._files[found[0]]
        return str(path_of(self._places.module_target(module), Path(), is_package=False)).removeprefix("src/")


def write(files: Mapping[Path, str | None], mentions: Mentions, root: Path) -> None:
    for path, text in files.items():
        if text is None:
            path.unlink()
    for path, text in files.items():
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        path = root / name
        if path.suffix in _TEXT_SUFFIXES - {".py"} and path.is_file() and path.name != "CHANGELOG.md":
            text = path.read_text()
            if (new := mentions.replace(text)) != text:
                path.write_text(new)
    for folder in sorted((root / "src" / PACKAGE).rglob("*"), reverse=True):
        if folder.is_dir() and not any(
            each.suffix != ".pyc" and each.name != "__pycache__" for each in folder.iterdir()
        ):
            subprocess.run(["rm", "-rf", str(folder)], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", nargs="+", type=Path, metavar="MAP.tsv")
    parser.add_argument("--only", metavar="PACKAGE", help="lines with a source in this package, e.g. weir.meta")
    parser.add_argument(
        "--write", action="store_true", help="change the checkout; without it the tool only reports"
    )
    parser.add_argument("--root", type=Path, default=ROOT)
    given = parser.parse_args(arguments)
    places = Destinations(read_maps(given.maps, given.only), load(given.root), given.root)
    files = new_files(places, given.root)
    for line in sorted(set(places.report)):
        print(line)
    gone = sum(text is None for text in files.values())
    print(f"{len(places.plan)} targets, {gone} modules moved, {len(files) - gone} files written")
    if given.write:
        write(files, places.mentions, given.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs tests with one mutant in place of its module: `python -m tools.mutants.child MODULE MUTANT TEST...`."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest
from tools.mutants.__main__ import source_of
from tools.mutants.mutations import mutants_of

#: Exit code, unlike pytest's own.
NO_MUTANT = 70


class _Finder(importlib.abc.MetaPathFinder):
    """Loads the one module from the changed source."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._source)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        return compile(self._source, self.path, "exec", dont_inherit=True)


def main() -> int:
    module, wanted, *tests = sys.argv[1:]
    if wanted:
        mutant = next((each for each in mutants_of(module, source_of(module)) if each.name == wanted), None)
        if mutant is None:
            return NO_MUTANT
        sys.meta_path.insert(0, _Finder(f"weir.{module}", mutant.source()))
    options = ["-x", "-p", "no:xdist", "-p", "no:randomly", "-m", "not slow and not process", "--show-capture=no"]
    return int(pytest.main([*options, "--hypothesis-profile=quick", "--timeout=60", *tests]))


if __name__ == "__main__":
    sys.exit(main())

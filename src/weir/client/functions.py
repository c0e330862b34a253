"""Functions that are deployed, asked of the admin REST by code that blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from weir.client.admin import Access, ask, join
from weir.client.definition_runner import RunnerLease
from weir.model.definitions import Function, FunctionStats, FunctionWanted
from weir.model.errors import WireError
from weir.model.topics import NamespaceName, TopicName

_RUNNER = RunnerLease("function-runner")
#: Where the functions are run, if anywhere.
runner = _RUNNER.state
take_runner = _RUNNER.take
release_runner = _RUNNER.release


@dataclass(frozen=True, slots=True)
class Deployed:
    """A function, and what its runner last said of it."""

    function: Function
    stats: FunctionStats | None


@dataclass(frozen=True, slots=True)
class Definition:
    """What somebody deploys."""

    code: str
    file: str
    entry: str
    inputs: tuple[TopicName, ...]
    output: TopicName | None
    options: Mapping[str, str]

    def body(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "file": self.file,
            "entry": self.entry,
            "inputs": [str(one) for one in self.inputs],
            "output": None if self.output is None else str(self.output),
            "options": dict(self.options),
        }


def all_functions(access: Access) -> Sequence[Deployed]:
    return [_deployed(one) for one in _list(ask(access, "GET", "functions"))]


def functions_of(access: Access, namespace: NamespaceName) -> Sequence[Deployed]:
    return [
        _deployed(one) for one in _list(ask(access, "GET", join("functions", namespace.tenant, namespace.name)))
    ]


def get_function(access: Access, name: TopicName) -> Deployed:
    """FunctionNotFoundError's words if there is none."""
    return _deployed(ask(access, "GET", _path(name)))


def deploy(access: Access, name: TopicName, what: Definition) -> Deployed:
    """A new one; refused if there is another of this name."""
    return _deployed(ask(access, "POST", _path(name), what.body()))


def update(access: Access, name: TopicName, what: Definition) -> Deployed:
    """Its next version, if anything is different."""
    return _deployed(ask(access, "PUT", _path(name), what.body()))


def want(access: Access, name: TopicName, wanted: FunctionWanted) -> Deployed:
    return _deployed(ask(access, "PUT", f"{_path(name)}/state", {"state": wanted.value}))


def delete(access: Access, name: TopicName) -> None:
    ask(access, "DELETE", _path(name))


def report(access: Access, name: TopicName, stats: FunctionStats) -> None:
    told = {_camel(key): found for key, found in asdict(stats).items() if key != "reported_ms"}
    told["error"] = stats.error[:4_000]
    ask(access, "PUT", f"{_path(name)}/stats", told)


def _path(name: TopicName) -> str:
    return join("functions", name.namespace.tenant, name.namespace.name, name.local)


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise WireError("the server does not tell functions as expected")
    return answer


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _deployed(found: Any) -> Deployed:
    try:
        told = found.get("stats")
        function = Function(
            name=TopicName.parse(found["name"]),
            id=found["id"],
            version=found["version"],
            code=found["code"],
            file=found["file"],
            entry=found["entry"],
            inputs=tuple(TopicName.parse(one) for one in found["inputs"]),
            output=None if found["output"] is None else TopicName.parse(found["output"]),
            options=found["options"],
            wanted=FunctionWanted(found["state"]),
            role=found["role"],
            created_ms=found["createdMs"],
            updated_ms=found["updatedMs"],
        )
        names = [one.name for one in fields(FunctionStats)]
        known = {name: told[_camel(name)] for name in names if _camel(name) in told} if told is not None else {}
        stats = None if told is None else FunctionStats(**known)
        return Deployed(function, stats)
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        raise WireError(f"the server does not tell functions as expected: {bad!r}") from None

"""`make mutants`: its mutants are what they say, and those that once survived are killed."""

import pytest
from tools.mutants.__main__ import ACCEPTED, ROOT, judge, read_accepted, source_of
from tools.mutants.mutations import mutants_of
from tools.mutants.table import TARGETS

SOURCE = """
def f(a, b):
    if a < b and b:
        log.info("seen by nobody")
        return a // 2
    a.stop()
"""


def test_each_mutant_is_one_change_of_the_source() -> None:
    mutants = {mutant.change: mutant.source() for mutant in mutants_of("m", SOURCE)}
    assert list(mutants) == [
        "negate `a < b and b`",
        "`a < b and b` -> `a < b or b`",
        "`a < b` -> `a <= b`",
        "`return a // 2` -> return None",
        "remove `return a // 2`",
        "`a // 2` -> `a * 2`",
        "2 -> 3",
        "remove `a.stop()`",
    ]
    assert len(set(mutants.values())) == len(mutants)
    assert "if not (a < b and b):" in mutants["negate `a < b and b`"]
    assert "a.stop" not in mutants["remove `a.stop()`"]
    for source in mutants.values():
        compile(source, "m", "exec")


def test_the_table_names_modules_and_tests_that_exist() -> None:
    for name, tests in TARGETS.items():
        assert mutants_of(name, source_of(name)), name
        for path in tests:
            assert (ROOT / path).exists(), path


def test_each_accepted_mutant_exists() -> None:
    accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    names = {mutant.name for name in TARGETS for mutant in mutants_of(name, source_of(name))}
    assert set(accepted) <= names


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        "gateway.amqp.publisher Publishing._resolve: False -> True",
        "stream.appender Appender._sent: remove `self._strand(failure if isinstance(failure, WeirError) else"
        " StreamBusyError(repr(failure)))`",
        "broker.publish.publish_order PublishOrder._go_on: remove `return`",
        "runtime.budgets ByteShare.release: `self._limit_bytes // 2` -> `self._limit_bytes * 2`",
    ],
)
def test_a_mutant_that_once_survived_is_killed(name: str) -> None:
    module = name.split()[0]
    (mutant,) = [each for each in mutants_of(module, source_of(module)) if each.name == name]
    assert judge(mutant, TARGETS[module], limit_s=120).killed

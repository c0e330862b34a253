"""`--scenario balance`: one run in full size and its table, or the promise that it breaks."""

from contextlib import ExitStack

from rich.console import Console

from weir.testing.balance.checkers import CHECKERS
from weir.testing.balance.mutations import MUTATIONS
from weir.testing.balance.plan import FULL
from weir.testing.balance.report import table_of
from weir.testing.balance.run import run_balance
from weir.testing.world.listening import quiet_collection

NAME = "balance"


def report_balance(console: Console, seed: int, mutation: str | None) -> bool:
    """Whether every promise was kept."""
    console.print(f"balance: {FULL.brokers:,} brokers and {FULL.bundles:,} bundles, seed {seed}; some minutes")
    with quiet_collection(), ExitStack() as stack:
        if mutation is not None:
            stack.enter_context(MUTATIONS[mutation].applied())
        history = run_balance(FULL, seed)
    console.print(table_of(history))
    broken = [violation for checker in CHECKERS for violation in checker(history)]
    for violation in broken[:10]:
        console.print(f"[bold red]broken[/] {violation}", highlight=False)
    if not broken:
        console.print("[green]every promise kept[/]")
    return not broken

"""The pages of the documentation agree with the code."""

import re
from pathlib import Path

import neada
from neada.optim import PlayerOptimizer

DOCS = Path(__file__).parents[1] / "docs"


def test_the_table_says_what_each_optimizer_says_of_itself() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (DOCS / "optimizers.md").read_text(), re.M)
    table = dict(rows)
    for name in neada.optim.__all__:
        optimizer = getattr(neada.optim, name)
        is_method = isinstance(optimizer, type) and issubclass(optimizer, PlayerOptimizer)
        if is_method and optimizer is not PlayerOptimizer:
            assert table.pop(name) == optimizer.needs_to_know
            assert "Needs to know: " in optimizer.__doc__
            assert "Guarantees: " in optimizer.__doc__
    assert set(table) == {"parameter_free_sgd"}


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    for module in (neada.optim, neada.sets, neada.steppers):
        page = (DOCS / "api" / f"{module.__name__.split('.')[1]}.md").read_text()
        for name in module.__all__:
            assert re.search(rf"{module.__name__}\.{name}\b", page), name

"""`neada solve`, `neada methods`, `neada problems` and `neada info`."""

from typing import Any

import neada
from neada.cli.output import figure_path, print_json, save_figure

__all__ = ["info", "methods", "problems", "solve"]

_SHOWN = (
    *("message", "success", "fun", "grad_norm_x", "grad_norm_y"),
    *("calls_x", "calls_y", "calls_value"),
)


def solve(
    problem: str,
    /,
    *,
    method: str = "auto",
    lr_x: float | None = None,
    lr_y: float | None = None,
    tol: float = 1e-6,
    max_calls: int = 100_000,
    noise: float | None = None,
    seed: int = 0,
    plot: str | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Solve a test problem; the exit code is 1 if the result is not a solution.

    Args:
        problem: Test problem; `neada problems` lists them.
        method: Method; `neada methods` lists them.
        lr_x: Learning rate of x, if the method has one.
        lr_y: Learning rate of y, if the method has one.
        tol: Tolerance of both gradient norms.
        max_calls: Gradient and value evaluations in total.
        noise: Standard deviation of gradient noise.
        seed: Seed of the noise.
        plot: Plot both gradient norms into this .png or .svg file.
        json: Print JSON.
        quiet: Show no progress.
    """
    path = None if plot is None else figure_path("--plot", plot)
    rates = {"lr_x": lr_x, "lr_y": lr_y}
    chosen = neada.problems.make(problem)
    result = neada.minimax(
        chosen.fun,
        chosen.x0,
        chosen.y0,
        method=method,
        x_set=chosen.x_set,
        y_set=chosen.y_set,
        tol=tol,
        max_calls=max_calls,
        noise=noise,
        seed=seed,
        progress=not (quiet or json),
        options={name: rate for name, rate in rates.items() if rate is not None},
    )
    if path is not None:
        save_figure(result.plot(), path)
    x, y = result.x.tolist(), result.y.tolist()
    if json:
        print_json(
            {
                "problem": chosen.name,
                "method": method,
                "status": result.status.name,
                **{name: getattr(result, name) for name in _SHOWN},
                "x": x,
                "y": y,
            }
        )
        return 0 if result.success else 1
    print(f"{chosen.name} by {method}: {result.status.name}: {result.message}")
    print(f"f = {result.fun:.8g}")
    print(f"|x gradient| = {result.grad_norm_x:.2e}, |y gradient| = {result.grad_norm_y:.2e}")
    print(
        f"calls: {result.total_calls} ({result.calls_x} of x, {result.calls_y} of y, "
        f"{result.calls_value} values)"
    )
    print(f"x = {_short(x)}\ny = {_short(y)}")
    if path is not None:
        print(f"plot: {path}")
    return 0 if result.success else 1


def _short(point: list[float]) -> str:
    shown = ", ".join(f"{number:.6g}" for number in point[:6])
    return f"[{shown}{f', ... {len(point)} numbers' if len(point) > 6 else ''}]"


def methods(*, json: bool = False) -> int:
    """List the methods of `neada solve` with the constants and learning rates that they require.

    Args:
        json: Print JSON.
    """
    rows = [found._asdict() for found in neada.methods()]
    shown = ("name", "required_constants", "required_learning_rates", "description")
    print_json(rows) if json else _print_rows(rows, shown)
    return 0


def problems(*, json: bool = False) -> int:
    """List the test problems.

    Args:
        json: Print JSON.
    """
    found = [neada.problems.make(name) for name in neada.problems.names()]
    rows = [
        {"name": p.name, "size": f"{p.dim_x} x {p.dim_y}", "description": p.description}
        for p in found
    ]
    print_json(rows) if json else _print_rows(rows, ("name", "size", "description"))
    return 0


def info(*, json: bool = False) -> int:
    """Show versions, threads and devices.

    Args:
        json: Print JSON.
    """
    facts = neada.runs.environment()
    if json:
        print_json(facts)
        return 0
    packages = facts.pop("packages")
    for name, fact in {**facts, **packages}.items():
        print(f"{name:12} {', '.join(fact) if isinstance(fact, list) else fact}")
    return 0


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    rows = [{column: column.replace("_", " ") for column in columns}, *rows]
    widths = [max(len(str(row[column])) for row in rows) for column in columns]
    for row in rows:
        cells = (f"{row[column]!s:{width}}" for column, width in zip(columns, widths, strict=True))
        print("  ".join(cells).rstrip())

"""`neada solve`, `neada methods`, `neada problems`, `neada info`."""

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import neada
from neada.cli.arguments import (
    Parser,
    UsageError,
    add_flag,
    add_output_options,
    check_choice,
    in_flags,
    output_file,
    read_path,
    refusals,
)
from neada.runs import atomic_write, encode
from neada.training.config import Option

if TYPE_CHECKING:
    from neada.solve import MinimaxResult

__all__ = ["add_info", "add_methods", "add_problems", "add_solve"]


def add_solve(parser: Parser) -> None:
    """Fill the command `solve`."""
    parser.description = (
        "Solve one of the problems that come with the package, and say whether the\n"
        "answer is a solution: exit code 0 if it is, 1 if it is not."
    )
    parser.epilog = (
        "examples:\n"
        "  neada solve mccormick\n"
        "  neada solve quadratic --method gda --lr-x 0.05 --lr-y 0.3\n"
        "  neada solve stackelberg --tol 1e-9 --plot history.png --json"
    )
    parser.add_argument("problem", metavar="PROBLEM", help="see `neada problems`")
    for option in (
        Option("method", "see `neada methods`", "neada", str),
        Option("lr_x", "learning rate of x, where the method has one", None, float),
        Option("lr_y", "learning rate of y, where the method has one", None, float),
        Option("tol", "the norm of both gradients that is small enough", 1e-6, float),
        Option("max_calls", "gradient calls and values in all", 100_000, int),
        Option("noise", "standard deviation of gradient noise", None, float),
        Option("seed", "of the noise", 0, int, least=0),
    ):
        add_flag(parser, option)
    plot = partial(read_path, "--plot")
    parser.add_argument("--plot", type=plot, metavar="FILE", help="both norms as a PNG or SVG")
    add_output_options(parser)
    parser.set_defaults(command=_solve)


def _solve(args: argparse.Namespace) -> int:
    check_choice("PROBLEM", args.problem, neada.problems.names())
    methods = {info.name: info for info in neada.methods()}
    check_choice("--method", args.method, methods)
    rates = {name: getattr(args, name) for name in ("lr_x", "lr_y")}
    rates = {name: rate for name, rate in rates.items() if rate is not None}
    for name in rates:
        if name not in methods[args.method].options:
            raise UsageError(
                f"--{name.replace('_', '-')} is no option of --method {args.method}: leave it out, "
                "or choose another method"
            )
    if args.plot is not None:
        output_file(args.plot, "--plot", (".png", ".svg"))
    problem = neada.problems.make(args.problem)
    with refusals(vars(args)):
        result = neada.minimax(
            problem.fun,
            problem.x0,
            problem.y0,
            method=args.method,
            x_set=problem.x_set,
            y_set=problem.y_set,
            tol=args.tol,
            max_calls=args.max_calls,
            noise=args.noise,
            seed=args.seed,
            progress=not (args.quiet or args.json),
            options=rates,
        )
    if args.plot is not None:
        figure = result.plot()
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(args.plot.absolute()) as file:
            figure.savefig(file, format=args.plot.suffix[1:], dpi=150)
    _show_solve(args, problem.name, result)
    return 0 if result.success else 1


def _show_solve(args: argparse.Namespace, name: str, result: "MinimaxResult") -> None:
    facts: dict[str, Any] = {
        "problem": name,
        "method": args.method,
        "status": result.status.name,
        "message": in_flags(result.message, vars(args)),
        "success": bool(result.success),
        "fun": result.fun,
        "grad_norm_x": result.grad_norm_x,
        "grad_norm_y": result.grad_norm_y,
        "calls_x": result.calls_x,
        "calls_y": result.calls_y,
        "calls_value": result.calls_value,
        "x": result.x.tolist(),
        "y": result.y.tolist(),
    }
    if args.json:
        print(json.dumps(encode(facts), indent=2))
        return
    print(f"{name} by {args.method}: {result.status.name}: {facts['message']}")
    print(f"f = {result.fun:.8g}")
    print(f"|x gradient| = {result.grad_norm_x:.2e}, ", end="")
    print(f"|y gradient mapping| = {result.grad_norm_y:.2e}")
    print(
        f"calls: {result.total_calls} ({result.calls_x} of x, {result.calls_y} of y, "
        f"{result.calls_value} values)"
    )
    print(f"x = {_short(facts['x'])}\ny = {_short(facts['y'])}")
    if args.plot is not None:
        print(f"plot: {args.plot}")


def _short(point: list[float]) -> str:
    shown = ", ".join(f"{v:.6g}" for v in point[:6])
    return f"[{shown}{f', ... {len(point)} numbers' if len(point) > 6 else ''}]"


def add_methods(parser: Parser) -> None:
    """Fill the command `methods`."""
    add_output_options(parser)
    parser.set_defaults(command=_methods)


def _methods(args: argparse.Namespace) -> int:
    found = [info._asdict() for info in neada.methods()]
    _show_rows(args.json, found, ("name", "needs_to_know", "description"))
    return 0


def add_problems(parser: Parser) -> None:
    """Fill the command `problems`."""
    add_output_options(parser)
    parser.set_defaults(command=_problems)


def _problems(args: argparse.Namespace) -> int:
    zoo = [neada.problems.make(name) for name in neada.problems.names()]
    found = [
        {"name": p.name, "size": f"{p.dim_x} x {p.dim_y}", "description": p.description}
        for p in zoo
    ]
    _show_rows(args.json, found, ("name", "size", "description"))
    return 0


def add_info(parser: Parser) -> None:
    """Fill the command `info`."""
    add_output_options(parser)
    parser.set_defaults(command=_info)


def _info(args: argparse.Namespace) -> int:
    facts = neada.runs.environment()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    packages = facts.pop("packages")
    for name, fact in {**facts, **packages}.items():
        print(f"{name:12} {', '.join(fact) if isinstance(fact, list) else fact}")
    return 0


def _show_rows(as_json: bool, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    widths = [max(len(str(row[c])) for row in [*rows, {c: c for c in columns}]) for c in columns]
    for row in [{c: c.replace("_", " ") for c in columns}, *rows]:
        line = "  ".join(f"{row[c]!s:{w}}" for c, w in zip(columns, widths, strict=True))
        print(line.rstrip())

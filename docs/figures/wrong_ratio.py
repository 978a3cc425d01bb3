"""The figure of the first page: `python docs/figures/wrong_ratio.py` writes wrong-ratio.png.

McCormick's function (Figure 2 of the paper, here without noise) at a ratio of learning rates that
two Adams do not converge with.
"""

from pathlib import Path

import torch

import neada
from neada import plots

LR_X, LR_Y = 0.5, 0.01
MAX_CALLS = 4000
PROBLEM = neada.problems.make("mccormick")

Curve = tuple[list[int], list[float]]


def play(make_stepper: type[neada.Simultaneous] | type[neada.NeAda]) -> Curve:
    """The calls that the two Adams have spent, and the norm of x's gradient."""
    x = PROBLEM.x0.clone().requires_grad_()
    y = PROBLEM.y0.clone().requires_grad_()
    stepper = make_stepper(
        torch.optim.Adam([x], lr=LR_X), torch.optim.Adam([y], lr=LR_Y, maximize=True)
    )
    calls, norms = [], []
    while stepper.total_calls < MAX_CALLS:
        info = stepper.step(lambda: PROBLEM.fun(x, y))
        calls.append(stepper.total_calls)
        norms.append(info.grad_sq_x**0.5)
    return calls, norms


def solve() -> Curve:
    """The same of `minimax` without options."""
    history = neada.minimax(PROBLEM.fun, PROBLEM.x0, PROBLEM.y0).history
    return history.calls, history.grad_norm_x


def curves() -> dict[str, Curve]:
    """What the figure shows, by the words of its legend."""
    return {
        "two Adams": play(neada.Simultaneous),
        "the same two in NeAda": play(neada.NeAda),
        "neada.minimax, no rates": solve(),
    }


def main() -> None:
    """Draw the curves and write the file next to this one."""
    figure, (axes,) = plots.new_figure(1, 1, panel_size=(5.0, 3.2))
    styles = (
        {"color": "#D55E00", "linestyle": "--"},
        {"color": "#0072B2"},
        {"color": "black", "marker": "o", "markersize": 4},
    )
    for (label, (calls, norms)), style in zip(curves().items(), styles, strict=True):
        axes.plot(calls, norms, label=label, linewidth=1.3, **style)
    axes.set(xscale="log", yscale="log", ylim=(1e-10, 100.0))
    axes.grid(alpha=0.3)
    plots.label_axes(
        axes,
        f"McCormick's function, learning rates {LR_X} of x and {LR_Y} of y",
        "gradient calls",
        "norm of x's gradient",
    )
    plots.shared_legend(figure, [axes], num_columns=2)
    figure.savefig(Path(__file__).parent / "wrong-ratio.png", dpi=200)


if __name__ == "__main__":
    main()

"""
A matrix game and a game of one's own
=====================================

For someone with a function of two players who wants its saddle point and no learning
rates.
"""

# %%
# A matrix game: x chooses a row, y a column, each at random, and x pays y the entry.
# Mixed strategies are points of a simplex. The value of the game is a linear program,
# which checks the answer.
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import linprog

import neada

payment = torch.tensor(
    [[0.0, 2.0, -1.0, 0.5], [-1.0, 0.0, 3.0, -0.5], [2.0, -1.5, 0.0, 1.0]],
    dtype=torch.float64,
)
x0, y0 = (torch.full((n,), 1.0 / n, dtype=torch.float64) for n in payment.shape)
simplex = neada.sets.Simplex()
game = neada.minimax(lambda x, y: x @ payment @ y, x0, y0, x_set=simplex, y_set=simplex)
print(game)

# %%
# The linear program: the smallest v such that no column earns more than v.
rows, columns = payment.shape
program = linprog(
    np.r_[np.zeros(rows), 1.0],
    A_ub=np.c_[payment.numpy().T, -np.ones(columns)],
    b_ub=np.zeros(columns),
    A_eq=np.r_[np.ones(rows), 0.0][None],
    b_eq=[1.0],
    bounds=[(0.0, None)] * rows + [(None, None)],
)
print(f"value: {float(game.fun):.8f}, by linear programming {program.fun:.8f}")
assert abs(float(game.fun) - program.fun) < 1e-5


# %%
# A game of one's own: x places a station on a line, y a disturbance that costs it
# effort. It is not convex in x, and any function that torch can differentiate will do.
def own(x, y):
    return torch.cos(2.0 * x) + 0.1 * x**2 + x * y - y**2


result = neada.minimax(own, 0.3, 0.0)
print(result)

# %%
# The history has one entry per outer step. Both norms must fall below the tolerance;
# which of them lags behind says which player is hard. A norm of zero, as of a y that is
# solved exactly, is drawn at 1e-12.
figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.4), constrained_layout=True)
for axis, solved, title in zip(
    axes, (game, result), ("matrix game", "own game"), strict=True
):
    history = solved.to_numpy()
    axis.semilogy(
        history["calls"], np.maximum(history["grad_norm_x"], 1e-12), label="x"
    )
    axis.semilogy(
        history["calls"], np.maximum(history["grad_norm_y"], 1e-12), label="y"
    )
    axis.axhline(solved.tol, color="gray", linestyle=":", label="tolerance")
    axis.set(
        title=f"{title}: {solved.status.name}",
        xlabel="calls",
        ylabel="norm of the gradient",
    )
    axis.legend(loc=(0.02, 0.55))
plt.show()

"""Estimators against plain models and other packages on the data that scikit-learn brings.

    python benchmarks/estimators.py [--quick] [--write [FOLDER]] [--render]

Rows of other packages that are not installed say so.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pages
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from neada import attacks
from neada.estimators import RobustClassifier, RobustRegressor

L2, LINF = 0.5, 0.1
Fit = Callable[[np.ndarray, np.ndarray], nn.Module]


def as_linear(weight: np.ndarray, bias: np.ndarray) -> nn.Module:
    weight, bias = np.atleast_2d(weight), np.atleast_1d(bias)
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def two_classes(weight: np.ndarray, bias: Any) -> nn.Module:
    """A linear score of the second class as two logits."""
    weight, bias = np.ravel(weight), float(np.ravel(bias)[0])
    return as_linear(np.stack([0.0 * weight, weight]), np.array([0.0, bias]))


def logistic(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    model = LogisticRegression(max_iter=1000).fit(inputs, targets)
    if len(model.classes_) == 2:
        return two_classes(model.coef_, model.intercept_)
    return as_linear(model.coef_, model.intercept_)


def perceptron(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    model = MLPClassifier((64,), max_iter=1000, random_state=0).fit(inputs, targets)
    first, last = (
        as_linear(weight.T, bias)
        for weight, bias in zip(model.coefs_, model.intercepts_, strict=True)
    )
    if len(model.classes_) == 2:
        last = two_classes(model.coefs_[1], model.intercepts_[1])
    return nn.Sequential(first, nn.ReLU(), last)


def ours(make: type, **options: Any) -> Fit:
    def fit(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
        model = make(standardize=False, random_state=0, **options).fit(inputs, targets)
        network: nn.Module = model.module_
        return network

    return fit


def skwdro(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    from skwdro.linear_models import LogisticRegression as Robust

    model = Robust(rho=L2).fit(inputs, 2.0 * targets - 1.0)
    return two_classes(model.coef_, model.intercept_)


def dro(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    from dro.linear_model import WassersteinDRO

    model = WassersteinDRO(inputs.shape[1], "logistic")
    model.update({"eps": LINF, "p": 1, "kappa": "inf"})
    model.fit(inputs, 2.0 * targets - 1.0)
    return two_classes(model.theta, model.b)


def ridge(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    model = Ridge().fit(inputs, targets)
    return as_linear(model.coef_, model.intercept_)


def skwdro_regression(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    from skwdro.linear_models import LinearRegression

    model = LinearRegression(rho=L2).fit(inputs, targets)
    return as_linear(np.ravel(model.coef_), np.ravel(model.intercept_)[:1])


def dro_regression(inputs: np.ndarray, targets: np.ndarray) -> nn.Module:
    from dro.linear_model import WassersteinDRO

    model = WassersteinDRO(inputs.shape[1], "ols")
    model.update({"eps": LINF, "p": 2, "kappa": "inf"})
    model.fit(inputs, targets)
    return as_linear(np.ravel(model.theta), np.ravel(model.b)[:1])


BALL = {"objective": "adversarial"}
CLASSIFIERS: dict[str, Fit] = {
    "LogisticRegression": logistic,
    "MLPClassifier, 64": perceptron,
    "RobustClassifier, linear, wrm": ours(RobustClassifier),
    f"RobustClassifier, linear, l2 {L2}": ours(RobustClassifier, eps=L2, norm="l2", **BALL),
    f"RobustClassifier, linear, linf {LINF}": ours(RobustClassifier, eps=LINF, **BALL),
    "RobustClassifier, mlp, wrm": ours(RobustClassifier, module="mlp"),
    f"RobustClassifier, mlp, l2 {L2}": ours(
        RobustClassifier, module="mlp", eps=L2, norm="l2", **BALL
    ),
    f"RobustClassifier, mlp, linf {LINF}": ours(RobustClassifier, module="mlp", eps=LINF, **BALL),
}
BINARY: dict[str, Fit] = {
    f"skwdro LogisticRegression, rho {L2}": skwdro,
    f"dro WassersteinDRO, p 1, eps {LINF}": dro,
}
REGRESSORS: dict[str, Fit] = {
    "Ridge": ridge,
    "RobustRegressor, linear, wrm": ours(RobustRegressor),
    f"RobustRegressor, linear, l2 {L2}": ours(RobustRegressor, eps=L2, norm="l2", **BALL),
    f"RobustRegressor, linear, linf {LINF}": ours(RobustRegressor, eps=LINF, **BALL),
    f"skwdro LinearRegression, rho {L2}": skwdro_regression,
    f"dro WassersteinDRO, ols, p 2, eps {LINF}": dro_regression,
}
DATA = ("breast_cancer", "wine", "digits", "diabetes")


def split(name: str, seed: int) -> list[np.ndarray]:
    inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    strata = None if name == "diabetes" else targets
    train, test, wanted, held = train_test_split(
        inputs, targets, test_size=0.25, random_state=seed, stratify=strata
    )
    scaler = StandardScaler().fit(train)
    if name == "diabetes":
        wanted, held = (
            (wanted - wanted.mean()) / wanted.std(),
            (held - wanted.mean()) / wanted.std(),
        )
    return [scaler.transform(train), scaler.transform(test), wanted, held]


def classified(model: nn.Module, inputs: np.ndarray, targets: np.ndarray) -> list[float]:
    data = [(torch.tensor(inputs), torch.tensor(targets))]
    found = []
    for eps, norm in ((L2, "l2"), (LINF, "linf")):
        accuracy = attacks.robust_accuracy(
            model, data, "apgd", eps, norm=norm, generator=torch.Generator().manual_seed(0)
        )
        found.append(100.0 * float(np.ravel(list(accuracy.attacked.values()))[0]))
    with torch.no_grad():
        right = model(data[0][0]).argmax(1) == data[0][1]
    return [100.0 * right.double().mean().item(), *found]


def predicted(model: nn.Module, inputs: np.ndarray, targets: np.ndarray) -> list[float]:
    """R² of a linear model, clean and for the worst inputs: |r| + eps |w|, in the dual norm."""
    layer = model if isinstance(model, nn.Linear) else model[1]
    weight, bias = layer.weight.detach().numpy()[0], layer.bias.item()
    residual = np.abs(inputs @ weight + bias - targets)
    worst = (0.0, L2 * np.linalg.norm(weight), LINF * np.abs(weight).sum())
    return [1.0 - ((residual + more) ** 2).mean() / targets.var() for more in worst]


def compared(name: str, num_splits: int) -> list[dict[str, Any]]:
    table = REGRESSORS if name == "diabetes" else CLASSIFIERS
    table = {**table, **BINARY} if name == "breast_cancer" else table
    judge = predicted if name == "diabetes" else classified
    rows = []
    for label, fit in table.items():
        row: dict[str, Any] = {"data": name, "model": label, "splits": [], "trouble": None}
        for seed in range(num_splits):
            train, test, wanted, held = split(name, seed)
            started = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = fit(train, wanted)
            except ImportError:
                row["trouble"] = "not installed"
                break
            except Exception as error:  # of another package: a result like any other
                if "neada" in type(error).__module__ or "Robust" in label:
                    raise
                row["trouble"] = f"failed: {type(error).__name__}"
                break
            seconds = time.perf_counter() - started
            row["splits"].append([*judge(model.eval(), test, held), seconds])
        rows.append(row)
        pages.progress(f"{name}: {label}")
    return rows


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """A row for every model and every data set."""
    num_splits, names = (1, ("wine", "diabetes")) if arguments.quick else (5, DATA)
    rows = [row for name in names for row in compared(name, num_splits)]
    return {"num_splits": num_splits, "rows": rows}


def headlines(numbers: dict[str, Any]) -> list[pages.Headline]:
    """What the estimator gains over a plain network of the same size under attack."""
    last = {
        row["model"]: np.mean(row["splits"], axis=0)[2]
        for row in numbers["rows"]
        if row["data"] == "digits"
    }
    gain = last["RobustClassifier, mlp, wrm"] - last["MLPClassifier, 64"]
    what = f"accuracy of digits under linf {LINF} that `RobustClassifier` gains over "
    return [pages.Headline(f"{what}`MLPClassifier`, in points", gain, form=".1f")]


def render(record: pages.Record) -> str:
    """The page."""
    rows = record.numbers["rows"]
    lines = [
        "# Benchmarks: estimators",
        "",
        f"{pages.opening(record, 'estimators')} Means over {record.numbers['num_splits']} random "
        "splits (a quarter for testing), inputs standardized by the training part for all. "
        f"Defaults everywhere but for what a row names. The attacks are those "
        f"two that robust rows are trained for: at most {L2} in the l2 norm and at most {LINF} in "
        "every feature, by APGD for classifiers (accuracy in %), in closed form for linear "
        "regression (R²). A row with `wrm` is trained with a price instead of a distance. A radius "
        "of `dro` or `skwdro` is one of the whole distribution, which is not the same as a "
        "distance of every sample: their rows are as near as their arguments come.",
    ]
    for name in dict.fromkeys(row["data"] for row in rows):
        kind = "R²" if name == "diabetes" else "accuracy"
        lines += ["", f"## {name.replace('_', ' ').capitalize()}", ""]
        lines += [
            f"| model | clean {kind} | l2 {L2} | linf {LINF} | fit, s |",
            "|---|---|---|---|---|",
        ]
        for row in (row for row in rows if row["data"] == name):
            if row["trouble"]:
                lines.append(f"| {row['model']} | {row['trouble']} | - | - | - |")
                continue
            *scores, seconds = np.mean(row["splits"], axis=0)
            digits = 3 if name == "diabetes" else 1
            cells = [f"{score:.{digits}f}" for score in scores]
            lines.append(f"| {row['model']} | {' | '.join(cells)} | {seconds:.2f} |")
    return "\n".join(lines) + "\n"


BENCHMARK = pages.Benchmark("estimators", "benchmarks-estimators.md", measure, render, headlines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one split of wine and diabetes")
    arguments = pages.parse(parser)
    torch.set_num_threads(1)
    pages.publish(BENCHMARK, arguments)


if __name__ == "__main__":
    main()

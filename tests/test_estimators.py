"""Estimators: scikit-learn's own checks, its tools, closed forms of the worst case, refusals."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neada

pytest.importorskip("sklearn", minversion="1.6", reason="estimators need the extra 'sklearn'")

import joblib
import sklearn
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from neada.estimators import GroupRobustClassifier, RobustClassifier, RobustRegressor

# Fewer epochs than by default: the checks are about the interface.
QUICK: dict[str, Any] = {"lr": 0.1, "max_iter": 30, "batch_size": 512}


@parametrize_with_checks(
    [
        RobustClassifier("mlp", hidden=(8,), objective="adversarial", norm="l2", **QUICK),
        RobustRegressor(**QUICK),
        GroupRobustClassifier(**QUICK),
    ]
)
def test_scikit_learn_accepts_them(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    rows, labels = load_breast_cancer(return_X_y=True)
    return rows[:300], labels[:300]


def standardized(rows: np.ndarray) -> np.ndarray:
    return (rows - rows.mean(0)) / rows.std(0)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", np.inf)])
def test_a_linear_classifier_minimizes_the_closed_form_of_the_worst_case(
    cancer: tuple[np.ndarray, np.ndarray], norm: str, dual: float
) -> None:
    rows, labels = cancer
    rows = rows[:, :5]
    eps = 0.2
    exact = {"batch_size": 300, "tol": 1e-6, "max_iter": 500}
    model = RobustClassifier(objective="adversarial", eps=eps, norm=norm, **exact)
    model.fit(rows, labels)
    inputs, signs = standardized(rows), 2.0 * labels - 1.0

    def robust_loss(point: np.ndarray) -> float:
        w, b = point[:-1], point[-1]
        margins = signs * (inputs @ w + b) - eps * np.linalg.norm(w, dual)
        return float(np.logaddexp(0.0, -margins).mean())

    layer = model.module_[1]
    w = (layer.weight[1] - layer.weight[0]).detach().numpy()
    b = (layer.bias[1] - layer.bias[0]).item()
    found = robust_loss(np.append(w, b))
    best = min(
        minimize(robust_loss, start, method="Powell", options={"maxiter": 50_000}).fun
        for start in (np.zeros(6), np.append(w, b))
    )
    assert found <= 1.01 * best
    assert model.loss_curve_[-1] == pytest.approx(found, abs=5e-3)


def test_a_linear_regressor_minimizes_the_closed_form_of_the_worst_case() -> None:
    rows, targets = load_diabetes(return_X_y=True)
    gamma = 2.0
    model = RobustRegressor(gamma=gamma, tol=1e-5, max_iter=300, random_state=0).fit(rows, targets)
    inputs, wanted = standardized(rows), standardized(targets)

    def robust_loss(point: np.ndarray) -> float:
        w, b = point[:-1], point[-1]
        if w @ w >= gamma:
            return float("inf")
        return float(((inputs @ w + b - wanted) ** 2).mean() / (1.0 - w @ w / gamma))

    layer = model.module_[1]
    found = robust_loss(np.append(layer.weight.detach().numpy()[0], layer.bias.item()))
    best = minimize(robust_loss, np.zeros(11), method="L-BFGS-B").fun
    assert found <= 1.01 * best
    assert model.loss_curve_[-1] == pytest.approx(found, abs=5e-3)


def test_defaults_need_no_scaling(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = cancer
    factors = 10.0 ** np.linspace(-6, 6, rows.shape[1])
    plain = RobustClassifier(random_state=0).fit(rows, labels)
    scaled = RobustClassifier(random_state=0).fit(rows * factors + 3.0 * factors, labels)
    assert plain.score(rows, labels) > 0.95
    np.testing.assert_allclose(
        plain.predict_proba(rows),
        scaled.predict_proba(rows * factors + 3.0 * factors),
        atol=1e-4,
    )
    outside = make_pipeline(StandardScaler(), RobustClassifier(standardize=False, random_state=0))
    np.testing.assert_allclose(
        outside.fit(rows, labels).predict_proba(rows), plain.predict_proba(rows), atol=1e-6
    )


def test_a_seed_decides_and_the_global_generator_does_not_move() -> None:
    rows, labels = make_classification(80, 4, random_state=0)
    before = torch.get_rng_state()
    first, second, other = (
        RobustClassifier("mlp", max_iter=3, random_state=seed).fit(rows, labels)
        for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first.predict_proba(rows), second.predict_proba(rows))
    assert not np.array_equal(first.predict_proba(rows), other.predict_proba(rows))


class Tiny(nn.Module):
    """A network of one's own, with batch norm and dropout."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(6, num_outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.layers(inputs))
        return outputs


def test_pipelines_searches_frames_strings_and_pickles(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    bunch = load_wine(as_frame=True)
    names = np.array(["red", "rosé", "white"])[bunch.target]
    model = RobustClassifier(Tiny, max_iter=15, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), clone(model)), {"robustclassifier__gamma": [0.5, 2.0]}, cv=2
    )
    search.fit(bunch.data, names)
    assert search.best_score_ > 0.8
    assert cross_val_score(model, bunch.data, names, cv=2).min() > 0.7
    model.fit(bunch.data, names)
    assert isinstance(bunch.data, pandas.DataFrame)
    assert list(model.feature_names_in_) == list(bunch.data.columns)
    assert model.n_features_in_ == 13
    assert model.decision_function(bunch.data).shape == (178, 3)
    assert set(model.predict(bunch.data)) <= {"red", "rosé", "white"}
    np.testing.assert_allclose(model.predict_proba(bunch.data).sum(1), 1.0)
    joblib.dump(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        np.testing.assert_array_equal(
            copy.predict_proba(bunch.data), model.predict_proba(bunch.data)
        )


def test_the_precision_is_that_of_the_rows() -> None:
    rows, labels = make_classification(60, 4, random_state=0)
    model = RobustClassifier(max_iter=2).fit(rows.astype(np.float32), labels)
    assert next(model.module_.parameters()).dtype == torch.float32
    assert model.predict_proba(rows).dtype == np.float32


# Certificates.


def test_a_certificate_bounds_the_loss_of_shifted_data(
    cancer: tuple[np.ndarray, np.ndarray],
) -> None:
    rows, labels = cancer
    model = RobustClassifier(gamma=2.0, random_state=0).fit(rows, labels)
    bound = model.certificate(rows, labels, rho=0.25)
    assert bound.kind == "certified" and bound.num_samples == 300

    def loss(moved: np.ndarray) -> float:
        shares = model.predict_proba(model.scaler_.inverse_transform(moved))
        return float(-np.log(shares[np.arange(300), labels]).mean())

    inputs, signs = standardized(rows), 2.0 * labels - 1.0
    layer = model.module_[1]
    w = (layer.weight[1] - layer.weight[0]).detach().numpy()
    against = -signs[:, None] * w / np.linalg.norm(w)
    assert loss(inputs) < loss(inputs + 0.5 * against) <= bound.value
    regressor = RobustRegressor(random_state=0).fit(rows, labels)
    assert regressor.certificate(rows, labels, rho=0.1, gamma=8.0).kind == "certified"


def test_a_certificate_is_refused_where_it_does_not_hold(
    cancer: tuple[np.ndarray, np.ndarray],
) -> None:
    rows, labels = cancer
    ball = RobustClassifier(objective="adversarial", max_iter=2).fit(rows, labels)
    with pytest.raises(ValueError, match="adversarial"):
        ball.certificate(rows, labels, rho=0.1)
    cheap = RobustClassifier(gamma=0.01, max_iter=20).fit(rows, labels)
    with pytest.raises(ValueError, match="certificate"):
        cheap.certificate(rows, labels, rho=0.1, gamma=1e-6)
    with pytest.raises(ValueError, match="label"):
        cheap.certificate(rows, labels + 1, rho=0.1)
    with pytest.raises(ValueError, match="rows"):
        cheap.certificate(rows, labels[1:], rho=0.1)


# Groups.


def shortcut(num_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A weak true feature, and a strong one that is wrong for the 5 % of the minority."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], num_samples)
    minority = random.random(num_samples) < 0.05
    strong = np.where(minority, -signs, signs)
    noise = random.normal(size=(num_samples, 2))
    rows = np.stack([signs + 0.8 * noise[:, 0], 2.0 * strong + 0.5 * noise[:, 1]], axis=1)
    return rows, np.where(signs > 0, "yes", "no"), np.where(minority, "few", "many")


def test_the_worst_group_fares_better_than_without_groups() -> None:
    rows, labels, groups = shortcut(1500, 0)
    test_rows, test_labels, test_groups = shortcut(4000, 1)
    by_group = GroupRobustClassifier(random_state=0).fit(rows, labels, groups=groups)
    by_class = GroupRobustClassifier(random_state=0).fit(rows, labels)
    assert list(by_group.groups_) == ["few", "many"]
    assert list(by_class.groups_) == ["no", "yes"]
    scores = by_group.group_scores(test_rows, test_labels, test_groups)
    assert set(scores) == {"few", "many"}
    plain = by_class.group_scores(test_rows, test_labels, test_groups)
    assert min(scores.values()) > 0.75 > 0.6 > min(plain.values())
    assert by_group.group_weights_.sum() == pytest.approx(1.0)


def test_the_kept_network_has_the_best_worst_group_on_what_was_held_out() -> None:
    rows, labels, groups = shortcut(400, 0)
    model = GroupRobustClassifier(validation_fraction=0.0, random_state=0)
    model.fit(rows, labels, groups=groups)
    assert len(model.validation_curve_) == model.n_iter_
    assert model.validation_curve_[model.best_iter_ - 1] == max(model.validation_curve_)
    # Nothing is held out, so the curve is about the training data.
    worst = min(model.group_scores(rows, labels, groups).values())
    assert worst == pytest.approx(max(model.validation_curve_))


def test_groups_are_routed() -> None:
    rows, labels, groups = shortcut(300, 0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = GroupRobustClassifier(max_iter=3, random_state=0).set_fit_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), model)
        pipeline.fit(rows, labels, groups=groups)
        assert list(pipeline[-1].groups_) == ["few", "many"]
        search = GridSearchCV(model, {"strength": [0.1, 1.0]}, cv=2)
        search.fit(rows, labels, groups=groups)
        assert list(search.best_estimator_.groups_) == ["few", "many"]
        scores = cross_val_score(model, rows, labels, params={"groups": groups}, cv=2)
        assert len(scores) == 2


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"module": "mpl"}, ValueError, "module"),
        ({"module": nn.Linear(4, 2)}, TypeError, "num_features"),
        ({"objective": "wmr"}, ValueError, "wrm"),
        ({"gamma": 0.0}, ValueError, "gamma"),
        ({"objective": "adversarial", "eps": -1.0}, ValueError, "eps"),
        ({"objective": "adversarial", "norm": "l3"}, ValueError, "norm"),
        ({"max_iter": 0}, ValueError, "max_iter"),
        ({"batch_size": 0.5}, ValueError, "batch_size"),
        ({"lr": 0.0}, ValueError, "lr"),
        # Parameters that are not used.
        ({"eps": 0.3}, ValueError, "eps"),
        ({"norm": "l2"}, ValueError, "norm"),
        ({"objective": "adversarial", "gamma": 0.5}, ValueError, "gamma"),
        ({"hidden": (8,)}, ValueError, "hidden"),
        ({"module": nn.Linear, "hidden": [8, 8]}, ValueError, "hidden"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_with_a_sentence(
    arguments: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    rows, labels = make_classification(40, 4, random_state=0)
    with pytest.raises(error, match=sentence):
        clone(RobustClassifier(**arguments)).fit(rows, labels)


WITHOUT = """
import sys
sys.modules["sklearn"] = None
import neada
neada.estimators
try:
    neada.estimators.RobustClassifier
except ImportError as error:
    assert "pip install 'neada[sklearn]'" in str(error), error
else:
    raise AssertionError("there is no scikit-learn")
"""


def test_without_scikit_learn_the_error_names_the_extra() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(neada.__file__).parents[1])},
    )
    assert result.returncode == 0, result.stderr

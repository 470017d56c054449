"""Scores predictions with a scorer of scikit-learn, or with a user's function that takes `(y_true, y_score)`.

Such a metric can score the ensemble or one of its models, on the test split or on the samples of one client.

Example:
    >>> import numpy as np
    >>> metric = SampleMetric("roc_auc")
    >>> metric.score(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    1.0
    >>> metric.score(np.array([1, 1]), np.array([[0.2, 0.8], [0.6, 0.4]]))  # one class has no area under the curve
    nan
"""

import inspect
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import FloatArray
from fedray.metrics.scores import check_number
from fedray.own_code.contract import contract

PROBABILITIES = ("y_score", "y_prob", "y_proba")  # second arguments with these names take probabilities of classes
LABELS = "y_pred"  # a second argument with this name takes predicted classes
OF_PROBABILITIES = ("log_loss", "d2_log_loss_score")  # of scikit-learn, which used to call probabilities `y_pred`


def second_argument(function: Any) -> str:
    """Returns the name of the second argument of a function `(y_true, y_score)` or `(y_true, y_pred)`.

    Instead of `y_score`, the names `y_prob` and `y_proba` are accepted. For any other function, the result is an empty
    text.

    Example:
        >>> from sklearn.metrics import average_precision_score, f1_score, log_loss
        >>> [second_argument(each) for each in (average_precision_score, f1_score, log_loss, lambda scored: 0.0)]
        ['y_score', 'y_pred', 'y_proba', '']
    """
    with suppress(TypeError, ValueError):  # what has no signature
        match list(inspect.signature(function).parameters):
            case ["y_true", second, *_] if second in (*PROBABILITIES, LABELS):
                inner = getattr(function, "func", function)  # of a partial
                is_theirs = str(getattr(inner, "__module__", "")).startswith("sklearn.")
                is_old = is_theirs and getattr(inner, "__name__", "") in OF_PROBABILITIES
                return PROBABILITIES[-1] if is_old else str(second)
    return ""


class SampleMetric(NamedTuple):
    """A metric that compares true and predicted values. For a scorer of scikit-learn, higher values are better.

    Attributes:
        name: Name of the metric. If `function` is None, this name selects a scorer of scikit-learn.
        positive: Index of the positive class (0 or 1), if there are two classes.
        function: The user's function `(y_true, y_score)` or `(y_true, y_pred)`. None means scikit-learn's scorer.
    """

    name: str
    positive: int = 1
    function: Callable[..., Any] | None = None

    def score(self, y: Any, prediction: FloatArray, weight: FloatArray | None = None) -> float:
        """Computes the metric for some samples, as scikit-learn does.

        If there are two classes, the positive class becomes class 1 for the metric.

        Args:
            y: True classes `[n]`, or true targets `[n]`.
            prediction: Probabilities of the classes `[n, C]`, or predicted targets `[n]`.
            weight: Weight of each sample, `[n]`. None means equal weights.

        Returns:
            The value, or NaN if the metric is undefined. If there are two classes, but all samples have the same class,
            the metric is first tried on made-up samples of one class. It is undefined if it then fails or warns. A
            metric without the argument `sample_weight` is undefined for samples with weights.

        Raises:
            BadInput: The metric cannot score these targets, or the user's function returns no number.
            FedrayError: The user's function raises an error.
        """
        classes = prediction.shape[1] if prediction.ndim == 2 else 0
        if classes == 2:
            y = (y == self.positive).astype(np.int64)
            prediction = prediction[:, [1 - self.positive, self.positive]]
        lacks = len(np.unique(y)) < classes
        if lacks and classes == 2 and not _accepts_one_class(self):
            return math.nan
        if weight is not None and "sample_weight" not in _list_parameters(self):
            return math.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                found = self._compute(y, prediction, {} if weight is None else {"sample_weight": weight})
            except (ValueError, FedrayError) as error:
                refused = isinstance(error.__cause__ if isinstance(error, FedrayError) else error, ValueError)
                if refused and (lacks or weight is not None):
                    return math.nan
                if isinstance(error, FedrayError):
                    raise
                raise BadInput(f"evaluate.metrics = {self.name}: {str(error).splitlines()[0]}") from None
        return math.nan if lacks and not math.isfinite(found) else found

    def _compute(self, y: Any, prediction: FloatArray, given: dict[str, Any]) -> float:
        """Computes the metric. `given` has further keyword arguments of the metric's function.

        If there are two classes, class 1 is the positive class.
        """
        classes = prediction.shape[1] if prediction.ndim == 2 else 0
        if self.function is None:
            return float(_find_scorer(self.name, classes)(_predictor(classes), prediction, y, **given))
        if classes:
            if second_argument(self.function) == LABELS:
                prediction = prediction.argmax(1)
            elif classes == 2:
                prediction = prediction[:, 1]
        return float(contract(f"metric {self.name}", self.function, check_number)(y, prediction, **given))

    def try_out(self, classes: int) -> None:
        """Computes the metric for a few made-up samples, to find mistakes before the run begins.

        Args:
            classes: Number of classes, C. It is 0 for a regression.

        Raises:
            BadInput: The metric is a scorer of scikit-learn that is for a different task.
        """
        y = np.tile(np.arange(classes or 2), 2)
        told: Any = 0.5 * np.eye(classes)[y] + 0.5 / classes if classes else y + 0.5
        try:
            for_targets = self.function is None and "regression" in _find_scorer(self.name, 0)._score_func.__module__
            if self.function is None and for_targets == (classes > 0):
                raise ValueError(f"it is for {'real targets' if for_targets else 'classes'}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self._compute(y, told, {})
        except (ValueError, TypeError) as error:
            if self.function is not None:
                raise
            task, fitting = ("real targets", "r2") if not classes else (f"{classes} classes", "balanced_accuracy")
            fitting += " or roc_auc_ovr" * (classes > 2)
            said = str(error).splitlines()[0].rstrip(".")
            raise BadInput(
                f"evaluate.metrics = {self.name}: scikit-learn does not score {task} with it ({said}): choose another "
                f"scorer, such as {fitting}"
            ) from None


@cache
def _list_parameters(metric: SampleMetric) -> frozenset[str]:
    """Returns the names of the parameters of a metric's function."""
    function = _find_scorer(metric.name, 0)._score_func if metric.function is None else metric.function
    return frozenset(inspect.signature(function).parameters)


@cache
def _accepts_one_class(metric: SampleMetric) -> bool:
    """Returns whether a metric of two classes is defined for samples of one class, whatever their predictions are."""
    told = np.array([[0.8, 0.2], [0.6, 0.4]])
    cases = [(np.full(2, y), prediction) for y in (0, 1) for prediction in (told, told[:, ::-1])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return all(math.isfinite(metric._compute(y, prediction, {})) for y, prediction in cases)
        except (ValueError, Warning, FedrayError):
            return False


@cache
def _find_scorer(name: str, classes: int) -> Any:
    """Returns a scorer of scikit-learn by its name.

    A scorer of probabilities gets the names of all C classes, even if the samples lack some classes.
    """
    from sklearn.metrics import get_scorer, make_scorer

    scorer = get_scorer(name)
    function, response = scorer._score_func, scorer._response_method
    if not classes or "predict_proba" not in response or "labels" not in inspect.signature(function).parameters:
        return scorer
    given = {**scorer._kwargs, "labels": np.arange(classes)}
    return make_scorer(function, response_method=response, greater_is_better=scorer._sign > 0, **given)


@cache
def _predictor(classes: int) -> Any:
    """Returns a model for scikit-learn's scorers.

    The model's predictions are its inputs, which are probabilities `[n, C]` or targets `[n]`.
    """
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Predictor(ClassifierMixin if classes else RegressorMixin, BaseEstimator):  # type: ignore[misc]
        classes_ = np.arange(classes)

        def predict(self, x: Any) -> Any:
            return x.argmax(axis=1) if classes else x

        def predict_proba(self, x: Any) -> Any:
            return x

    return Predictor()

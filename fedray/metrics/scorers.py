"""Scores true and predicted values by a scorer of scikit-learn, or by a user's function `(y_true, y_score)`.

Such a metric scores any samples: those of the test split as the ensemble or a member predicts them, or those of one
client.

Example:
    >>> import numpy as np
    >>> metric = SampleMetric("roc_auc")
    >>> metric.score(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    1.0
    >>> metric.score(np.array([1, 1]), np.array([[0.2, 0.8], [0.6, 0.4]]))  # one class has no area under the curve
    nan
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.metrics.scores import check_number
from fedray.own_code.contract import contract

PROBABILITIES = ("y_score", "y_prob", "y_proba")  # names of a second argument that takes probabilities of classes
LABELS = "y_pred"  # name of a second argument that takes predicted classes


def second_argument(function: Any) -> str:
    """Returns the name of the second argument of a function `(y_true, y_score)` or `(y_true, y_pred)`; else "".

    Example:
        >>> from sklearn.metrics import average_precision_score, f1_score
        >>> [second_argument(each) for each in (average_precision_score, f1_score, lambda scored: 0.0)]
        ['y_score', 'y_pred', '']
    """
    with suppress(TypeError, ValueError):  # what has no signature
        match list(inspect.signature(function).parameters):
            case ["y_true", second, *_] if second in (*PROBABILITIES, LABELS):
                return str(second)
    return ""


class SampleMetric(NamedTuple):
    """A metric of true and predicted values. For a scorer of scikit-learn, higher values are better.

    Attributes:
        name: Name of the metric's column; without `function` the name of a scorer of scikit-learn.
        positive: Number of the positive class, if there are two classes.
        function: The user's function `(y_true, y_score)` or `(y_true, y_pred)`; None: scikit-learn's scorer.
    """

    name: str
    positive: int = 1
    function: Callable[..., Any] | None = None

    def score(self, y: Any, prediction: FloatArray, weight: FloatArray | None = None) -> float:
        """Returns the metric of some samples, as scikit-learn computes it.

        Of two classes, the positive one is class 1 for the metric.

        Args:
            y: True classes `[n]`, or true targets `[n]`.
            prediction: Probabilities of the classes `[n, C]`, or predicted targets `[n]`.
            weight: Weight of each sample, `[n]`; None: equal weights.

        Returns:
            The value. NaN where classes are missing in `y` and the metric is undefined without them.

        Raises:
            BadInput: The user's function returns no number.
            FedrayError: The user's function raises an error.
        """
        classes = prediction.shape[1] if prediction.ndim == 2 else 0
        if classes == 2:
            y = (y == self.positive).astype(np.int64)
            prediction = prediction[:, [1 - self.positive, self.positive]]
        lacks = len(np.unique(y)) < classes
        given = {} if weight is None else {"sample_weight": weight}
        with warnings.catch_warnings():
            warnings.simplefilter("error" if lacks and classes == 2 else "ignore", UserWarning)
            try:
                if self.function is None:
                    return float(_find_scorer(self.name)(_predictor(classes), prediction, y, **given))
                wants, function = second_argument(self.function), self.function
                if classes:
                    prediction = prediction.argmax(1) if wants == LABELS else prediction
                    prediction = prediction[:, 1] if classes == 2 and wants != LABELS else prediction
                return float(contract(f"metric {self.name}", function, check_number)(y, prediction, **given))
            except (ValueError, UserWarning):
                if lacks:
                    return math.nan
                raise

    def try_out(self, classes: int) -> None:
        """Computes the metric of a few made-up samples, so that a mistake is found before the run begins.

        Args:
            classes: Number of classes, C; 0 for regression.

        Raises:
            BadInput: scikit-learn does not compute the metric for such a task.
        """
        y = np.tile(np.arange(max(2, classes)), 2)
        told: Any = 0.5 * np.eye(classes)[y] + 0.5 / classes if classes else y + 0.5
        try:
            self.score(y, told)
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
def _find_scorer(name: str) -> Any:
    from sklearn.metrics import get_scorer

    return get_scorer(name)


@cache
def _predictor(classes: int) -> Any:
    """Returns a model of scikit-learn whose inputs are its predictions: probabilities `[n, C]`, or targets `[n]`."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        classes_ = np.arange(classes)

        def predict(self, x: Any) -> Any:
            return x.argmax(axis=1)

        def predict_proba(self, x: Any) -> Any:
            return x

    class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def predict(self, x: Any) -> Any:
            return x

    return Classifier() if classes else Regressor()

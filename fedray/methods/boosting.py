r"""AdaBoost.F, DistBoost.F, PreWeak.F and federated bagging: ensembles of weak learners, without gradients.

Source: Polato, Esposito, Aldinucci, *Boosting the federation: cross-silo federated learning without gradient descent*,
IJCNN 2022. Client i holds n_i samples x with weights D_i(x), which are equal at first. In each round:

1. Client i draws n_i of its samples with probabilities proportional to D_i, and fits a weak learner h_i. Every client
   receives the learners of all clients.
2. For each learner h_j, client i sends the sum of D_i over its samples on which h_j is wrong. It also sends the sum
   over all its samples. The server computes the error e_j of h_j from these sums.
3. AdaBoost.F takes the h_j with the smallest error. DistBoost.F takes the vote of all h_j as one learner. In PreWeak.F
   every client first runs AdaBoost on its own samples for T rounds. Each round of the run then chooses one of the
   learners of all clients.
4. The chosen learner of round t is h_t. Its weight alpha_t follows from its error e, as in SAMME. Boosting stops if e
   >= 1 - 1 / C, for C classes.
5. Samples on which h_t is wrong get larger weights.
6. The prediction is the class with the largest sum of alpha_t over the learners h_t that choose this class.

Federated bagging (Breiman 1996, applied to each client) does not weight samples.

Formulas of adaboost_f:
    The weights $D_i(x)$ of all samples $(x, y)$ of all clients add up to 1. Sums over $x$ run over the samples of
    client $i$. The steps of round $t$ are:

    $$
    \begin{aligned}
    h_i &= \text{a learner on } n_i \text{ samples of client } i \text{, drawn in proportion to } D_i,\\
    e_j &= \frac{\sum_i \sum_{x} D_i(x)\, [h_j(x) \ne y]}{\sum_i \sum_{x} D_i(x)},\\
    h_t &= h_j \text{ of the least } e_j,\\
    \alpha_t &= \log \frac{1 - e}{e + 10^{-10}} + \log(C - 1), \qquad D_i(x) \propto D_i(x) \, e^{\alpha_t [h_t(x) \ne
    y]},
    \end{aligned}
    $$

    Here $e$ is the error of $h_t$. The prediction is $\operatorname*{argmax}_c \sum_t \alpha_t [h_t(x) = c]$.

Formulas of distboost_f:
    DistBoost.F is AdaBoost.F with a different $h_t$: the vote of the learners $h_j$ of all clients is one learner, and
    $e$ is the error of this vote.

Formulas of preweak_f:
    PreWeak.F is AdaBoost.F with a different first round, in which every participant runs AdaBoost on its own samples
    for $T$ rounds and sends all its learners. If all these participants are lost, those of the next round do so. Later
    rounds choose one of these learners and fit no new learners, also if other clients take part. In a client's own
    AdaBoost $C$ is the number of classes of the client's samples.

Formulas of federated_bagging:
    In each round client $i$ fits $h_i$ on $n_i$ of its samples, drawn uniformly and with replacement. Every learner has
    one vote: $\operatorname*{argmax}_c \sum_{t, i} [h_{ti}(x) = c]$.

Deviations:
    1. The authors' code does not stop if e >= 1 - 1 / C. The weight of such a learner is then negative.
    2. By default (`draw: rows`) a learner is fitted on drawn samples, as in the paper. With `draw: weights` it is
       fitted on all samples, weighted by D_i, as in scikit-learn's AdaBoostClassifier.
    3. Weights of samples are not stored, because they follow from the ensemble and the client's samples. A client
       downloads all learners that it lacks, and the traffic includes them. The sums of step 2 run over the participants
       only.
    4. PreWeak.F compares learners by their weighted errors. The authors' code compares them on samples that are drawn
       from all clients together, which no federation can do. A client stops its own boosting when a learner is no
       better than guessing among the client's classes. A client whose samples have one class fits one learner.
    5. In each round a client needs as much virtual time as one pass over its samples, even in PreWeak.F's first round.
       The learners that a client downloads in a round in which it drops out or is not available are never counted.
       PreWeak.F's learners count in the first round, also if they are fitted later.
       The traffic includes all messages of a round. The network's latency is added once for all bytes that a client
       sends, and once for all bytes that it receives. If a client drops out, its learner still counts as sent to all
       other clients.
    6. Each client draws its own random numbers in each round. The authors' learners share one seed.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "adaboost_f"}, "rounds": 10, "clients": {"number": 4}}
    >>> run = fedray.run(scenario, runtime="inline", report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, ReadSections, means, one_of
from fedray.methods import kit

_TREE = "sklearn/decision_tree"
_LEARNER: dict[str, Any] = {"name": _TREE, "max_leaf_nodes": 10}  # as in the papers


@means("word or section", "`sklearn/decision_tree`, with its options")
def check_learner(value: Any, read: ReadSections) -> dict[str, Any]:
    """Checks the option `learner`, which is a name or a section.

    The learner must be a decision tree, because only trees can be sent as plain values.

    Raises:
        ValueError: The value is neither a name nor a section.
        BadInput: The learner is not a decision tree, or an option is wrong. The message names the key.
    """
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"is no learner: write it as {{name: {_TREE}, max_leaf_nodes: 10}}")
    section = {**_LEARNER, **given}
    name = section["name"]
    if name in read.classifiers and name != _TREE:
        raise BadInput(
            f"method.learner.name = {name}: only a tree has a form in plain numbers that predicts exactly what "
            f"scikit-learn's does, and nothing is sent or saved as a pickle: choose {_TREE}"
        )
    learner = read.classifier("method.learner", section)
    if learner is None:
        raise BadInput(f"method.learner.name = {name} is a network, but clients fit learners: choose {_TREE}")
    if "max_leaf_nodes" not in learner:
        raise BadInput("method.learner.max_leaf_nodes is missing: give 2 to 1000, so that a learner has a size")
    return learner


_ADABOOST = MethodSpec(
    "AdaBoost.F: each round's best weak learner joins the ensemble; no gradients (Polato et al. 2022)",
    family="stacking and boosting",
    models="one",
    options={
        "learner": Option(_LEARNER, check_learner, "the weak learner of a client", sections=True),
        "draw": Option(
            "rows",
            one_of("rows", "weights"),
            "what a learner is fitted on: rows drawn by their weights (`rows`), or all rows, weighted (`weights`)",
        ),
    },
    defaults={"method": {"models": 1}, "rounds": 300},
    clients=10,
    fixed=("robust", "optimizer", "averages", "coefficients", "schedules"),
    in_rounds="asks all clients of a round about each other's learners",
    fits="one",
)
SPECS = {
    "adaboost_f": _ADABOOST,
    "distboost_f": replace(
        _ADABOOST,
        text="DistBoost.F: each round's weak learners join the ensemble as one committee (Polato et al. 2022)",
        fits="committee",
    ),
    "preweak_f": replace(
        _ADABOOST,
        text="PreWeak.F: clients boost by themselves, then each round takes the best learner (Polato et al. 2022)",
    ),
    "federated_bagging": replace(
        _ADABOOST,
        text="federated bagging: every round's weak learners vote, without weights",
        options={"learner": _ADABOOST.options["learner"]},
        downloads=False,
        in_rounds="adds the learners of a whole round at once",
        fits="each",
    ),
}


def adaboost_f(setting: kit.Setting) -> kit.Method:
    """Composes AdaBoost.F. The best learner of each round joins the ensemble."""
    phase = _boost(setting, kit.boosting.each_alone)  # 3: argmin_j e_j
    return kit.Method("adaboost_f", phase, explain_end=kit.boosting.explain_stop)


def distboost_f(setting: kit.Setting) -> kit.Method:
    """Composes DistBoost.F. The vote of each round's learners joins the ensemble as one learner."""
    phase = _boost(setting, kit.boosting.as_committee)  # 3: the vote of all h_j
    return kit.Method("distboost_f", phase, explain_end=kit.boosting.explain_stop)


def preweak_f(setting: kit.Setting) -> kit.Method:
    """Composes PreWeak.F. In each round the best of the learners of the first round joins the ensemble."""
    phase = _boost(setting, kit.boosting.each_alone, prepared=True)  # 3: argmin_j e_j over the pool of all learners
    return kit.Method("preweak_f", phase, explain_end=kit.boosting.explain_stop)


def federated_bagging(setting: kit.Setting) -> kit.Method:
    """Composes federated bagging. All learners of each round join the ensemble, with equal votes."""
    size = _ensemble(setting)
    return kit.Method(
        "federated_bagging",
        kit.Phase(
            models=1,
            schedule=kit.base.make_schedule(setting),
            local=_one_pass(),
            work=_learner(setting, size, draw="bootstrap"),  # 1
            server=kit.boosting.bagging_server(len(setting.seeds), setting.layout),  # 6, with alpha = 1
            compress=kit.dense(setting.layout),
            traffic=kit.boosting.bagging_traffic(4 * size.tree_numbers),
        ),
    )


def _boost(setting: kit.Setting, candidates: kit.boosting.Candidates, *, prepared: bool = False) -> kit.Phase:
    """Composes the training of one of the three boosting methods.

    Args:
        setting: The objects built from the scenario.
        candidates: A function that turns the learners of a round into candidates for the ensemble.
        prepared: Whether all learners are fitted in the first round.
    """
    size = _ensemble(setting)
    worlds, number = len(setting.seeds), setting.clients.number
    series = size.rounds if prepared else 1
    schedule = kit.base.make_schedule(setting)
    learner = _learner(setting, size, draw=setting.options["draw"])
    return kit.Phase(
        models=1,
        schedule=kit.boosting.until_chance(schedule),  # 4: the rounds end where e >= 1 - 1 / C
        local=_one_pass(),
        work=replace(learner, series=series),  # 1
        ask=kit.boosting.ask_about(worlds, candidates),  # 2
        server=kit.boosting.boosting_server(  # 3, 4, 5
            worlds, size.classes, setting.layout, candidates, keeps_pool=prepared
        ),
        compress=kit.dense(setting.layout),
        traffic=kit.boosting.boosting_traffic(
            schedule,
            worlds,
            number,
            learner=4 * size.tree_numbers,
            series=series,
            seats=size.seats,
            asked=candidates is kit.boosting.each_alone,
            pool=prepared,
        ),
    )


def _one_pass() -> kit.Local:
    """Returns a local training without gradient steps. It takes as much virtual time as one pass over the samples."""
    return kit.Local(batch_size=None, epochs=1)


def _ensemble(setting: kit.Setting) -> kit.Ensemble:
    assert setting.ensemble is not None, "it is composed from method.learner"
    return setting.ensemble


def _learner(
    setting: kit.Setting, size: kit.Ensemble, *, draw: Literal["rows", "weights", "bootstrap"]
) -> kit.FitTrees:
    """Returns the work of a client, which fits a decision tree (the learner) in each round of boosting or bagging."""
    options = {key: value for key, value in setting.options["learner"].items() if key != "name"}
    return kit.FitTrees(options, size.leaves, size.classes, draw, series=1)

r"""FedCross: in every round each of K models is trained by different clients and then mixed with another model.

Source: Hu, Zhou, Cao, Ling, Xia, Chen, *FedCross: Towards Accurate Federated Learning via Multi-Model
Cross-Aggregation*, ICDE 2024, Alg. 1.

Formulas of fedcross:
    $v_i$ is model $i$ after the training of round $t = 0, 1, \ldots$. The server mixes $v_i$ with the trained model of
    the partner $\mathrm{co}(i)$. The mean model $\bar w$ predicts:

    $$
    w_i \leftarrow \alpha \, v_i + (1 - \alpha) \, v_{\mathrm{co}(i)}, \qquad
    \mathrm{co}(i) = \bigl(i + (t \bmod (K - 1)) + 1\bigr) \bmod K, \qquad
    \bar w = \frac{1}{K} \sum_i w_i.
    $$

    With `partner: most_similar` the partner is the other model $j$ with the largest cosine of $v_i$ and $v_j$. With
    `least_similar` it is the model with the smallest cosine.

Deviations:
    1. If the scenario does not set the number of participants (`participation.per_round`), all clients take part. The
       paper has as many participants as models. If several participants train a model, the mean of its uploads is
       mixed. A model without uploads is mixed as it is.
    2. With `answer: ensemble` the mean of the K models' probabilities predicts. The paper predicts with the mean of the
       weights.
    3. Float buffers (BatchNorm) are mixed like weights, and are left out of the cosine.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "fedcross", "models": 4}, "rounds": 12, "clients": {"number": 12}}
    >>> run = fedray.run(scenario, local__lr=0.03, runtime="inline", report=False)
    >>> print(f"{run.metrics['accuracy']:.1f}")
    0.9
"""

from __future__ import annotations

from functools import partial

from fedray.core.options import MethodSpec, Option, one_of, real
from fedray.methods import kit

SPECS = {
    "fedcross": MethodSpec(
        "FedCross: every model is mixed with a bit of another one in each round (Hu et al. 2024)",
        family="averaging",
        options={
            "alpha": Option(0.99, real("[0, 1]"), "share of a model that stays when it is mixed with its partner"),
            "partner": Option(
                "in_order",
                one_of("in_order", "most_similar", "least_similar"),
                "which model is the partner: all others in turn, or the one with the largest or smallest cosine",
            ),
            "answer": Option(
                "mean", one_of("mean", "ensemble"), "what answers: the model with the mean weights, or all models"
            ),
        },
        defaults={"method": {"models": 10}},
        fixed=("robust", "optimizer", "coefficients"),
        in_rounds="mixes all models of a round",
    ),
}


def fedcross(setting: kit.Setting) -> kit.Method:
    """Composes FedCross with K models, `[K, d]`."""
    alpha, partner = setting.options["alpha"], setting.options["partner"]
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # line 5: the models are shuffled over the participants
        compress=kit.dense,
        merge=partial(cross_mean, alpha=alpha, partner=partner, trainable=setting.layout.trainable),  # lines 8 to 13
    )
    models = setting.models

    def answer(state: kit.State) -> kit.Answer:  # line 15
        rows = state.models.view(-1, models, state.models.shape[1]).mean(dim=1)
        return kit.Answer(kit.State(rows, state.counters[::models], {}), 1)

    return kit.Method("fedcross", phase, answer if setting.options["answer"] == "mean" else None)


def cross_mean(rows: kit.Rows, weighting: kit.Weighting, alpha: float, partner: str, trainable: int) -> kit.Server:
    """Returns a server that mixes each model with its partner's model, `w_i <- alpha v_i + (1 - alpha) v_co(i)`.

    Here `v_i` is the mean of the uploads of model i, and `co(i)` is its partner. Models are compared by the cosine of
    their first `trainable` values.
    """
    plain = kit.mean(rows, weighting)

    def step(state: kit.State, stats: kit.Stats, t: int) -> kit.State:
        state = plain.step(state, stats, t)
        trained = state.models.view(rows.worlds, rows.models, -1)  # v, [R, K, d]
        mixed = [v + (1 - alpha) * (v[choose_partners(v[:, :trainable], partner, t)] - v) for v in trained]
        return state._replace(models=kit.torch.cat(mixed))

    return plain._replace(step=step)


def choose_partners(models: kit.torch.Tensor, partner: str, t: int) -> kit.torch.Tensor:
    """Returns the index of each model's partner in round t, `[K]`, for K models of p parameters, `[K, p]`.

    A single model is its own partner.

    Example:
        >>> three = kit.torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> choose_partners(three, "in_order", 0).tolist(), choose_partners(three, "in_order", 1).tolist()
        ([1, 2, 0], [2, 0, 1])
        >>> choose_partners(three, "most_similar", 0).tolist(), choose_partners(three, "least_similar", 0).tolist()
        ([1, 0, 1], [2, 2, 0])
    """
    number = len(models)
    place = kit.torch.arange(number)
    if partner == "in_order" or number == 1:
        return (place + t % max(1, number - 1) + 1) % number
    unit = kit.torch.nn.functional.normalize(models.double(), dim=1)
    cosine = unit @ unit.T
    if partner == "most_similar":
        return cosine.fill_diagonal_(-2.0).argmax(dim=1)
    return cosine.fill_diagonal_(2.0).argmin(dim=1)

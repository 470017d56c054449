r"""Ditto: FedAvg, in which every client also trains a personal model that is pulled towards the global model.

Source: Li, Hu, Beirami, Smith, *Ditto: Fair and Robust Federated Learning Through Personalization*, ICML 2021, Alg. 1.
The key `lambda` is a number or a list. With a list every client trains one personal model per entry. The client
predicts with the model that has the best accuracy or RMSE on the client's held-out samples (the paper's section 3.3). A
list needs `data.hold_out` above 0.

Formulas of ditto:
    FedAvg with equal weights (`server.weighting: uniform`, as in Alg. 1) trains the model $w$. Each client also trains
    a personal model $v_i$, with which it predicts. A proximal term pulls $v_i$ towards $w$:

    $$
    v_i \leftarrow \mathrm{Train}\Bigl(v_i;\; F_i(v) + \frac{\lambda}{2} \lVert v - w \rVert^2\Bigr).
    $$

Deviations:
    1. A personal model starts from the global model of the first round in which its client takes part.
    2. The personal training has the epochs, the batch size and the learning rate of the global training. It draws its
       own batches.
    3. With K > 1 a client keeps one personal model for each model that it has trained. It predicts with the average of
       its personal models. For each model that the client has not trained yet, the average contains the server's model.

Example:
    >>> import fedray
    >>> scenario = {"method": {"name": "ditto", "lambda": 0.5}, "rounds": 3, "clients": {"number": 10}}
    >>> scenario["data"] = {"partition": {"name": "classes", "classes": 2}}
    >>> run = fedray.run(scenario, local__lr=0.1, evaluate__personal=True, runtime="inline", report=False)
    >>> metrics = run.summary["metrics"]
    >>> metrics["personal_accuracy"]["mean"] > metrics["accuracy"]["mean"]
    True
"""

from __future__ import annotations

from dataclasses import replace

from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec, Option, list_of, real
from fedray.methods import kit

SPECS = {
    "ditto": MethodSpec(
        "Ditto: FedAvg; each client also has a personal model, which is pulled to the global one (Li et al. 2021)",
        family="personal models",
        options={
            "lambda": Option(
                [0.1],
                list_of(real("[0, inf)"), 20, scalar=True),
                "weight of the pull of a personal model to the global one, or a list to choose from on held-out rows",
            ),
        },
        defaults={"method": {"models": 1}},
        own_models=True,
        private="personal model",
    ),
}


def ditto(setting: kit.Setting) -> kit.Method:
    """Composes FedAvg, whose clients also train personal models."""
    pulls = setting.options["lambda"]
    if not pulls:
        raise BadInput("method.lambda is an empty list: give a number, or some to choose from")
    if len(pulls) > 1 and not setting.hold_out:
        raise BadInput("method.lambda is a list, but data.hold_out is 0: hold rows out to choose by, or give one value")
    # lines 3-5, 8: FedAvg solves the global problem
    phase = kit.federated(setting, assign=kit.permutation, merge=kit.mean)
    personal = tuple(replace(setting.local, pull=pull) for pull in pulls)  # line 6
    return kit.Method("ditto", phase.add(kit.PersonalPasses(personal)))

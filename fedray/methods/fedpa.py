"""FedPA: FedAvg whose clients send where their posterior lies, measured by how sure they are of it.

Source: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, *Federated Learning via Posterior Averaging: A New Perspective and
Practical Algorithms*, ICLR 2021, arXiv 2010.05273.

If the clients' posteriors are Gaussians N(m_i, S_i), the mode of their product, which is the global posterior, has the
least sum of `1/2 (w - m_i)' S_i^-1 (w - m_i)`. FedPA descends by the gradients `S_i^-1 (w - m_i)` of that; FedAvg takes
all S_i for the identity, and ends elsewhere where clients differ and make several steps. A client samples while it
trains (iterate-averaged SGD): the iterates of each of l windows of its steps have a mean `[p]`.

Deviations:
    1. What counts is `local.epochs` or `local.steps`: the first share `mixing` of a client's steps is passed over, and
       the others are cut into l equal windows, where the authors' code has a sample for each epoch behind the first
       ones. So `epochs = 5, mixing = 0.2, samples = 4` is a sample an epoch, behind one epoch.
    2. A client with fewer steps than l takes a sample a step.
    3. The defaults of `mixing` and `samples` are those of the authors' example for EMNIST, that of `rho` their code's.
       The example's 400 rounds of burn-in (of 1,500), its momentum of the clients and that of the server (0.9, with
       `server.lr` 0.5) are keys.
    4. Float buffers (running statistics of normalization layers) have no posterior: they are averaged as in FedAvg.
    5. Virtual time counts a step as a step; what becomes of the samples, `l^2 p` operations, takes none.

Example:
    >>> import fedray
    >>> scenario = {"rounds": 3, "clients": {"number": 10}, "local": {"lr": 0.1, "epochs": 5}, "runtime": "inline"}
    >>> run = fedray.run(scenario, method={"name": "fedpa", "burn_in": 1}, report=False)
    >>> print(f"{run.summary['metrics']['accuracy']['mean']:.1f}")
    0.9
"""

from __future__ import annotations

from dataclasses import replace

from fedray.methods import kit


def fedpa(setting: kit.Setting) -> kit.Method:
    """One or K models `[K, d]` over N clients; traffic is FedAvg's."""
    options = setting.options
    sampled = kit.Windows(
        kit.one_shot.correct_by_precision(options["rho"]),  # S_i^-1 (w - m_i) of the samples, in time l^2 p
        number=options["samples"],  # means over windows of SGD's iterates
        mixing=options["mixing"],
        burn_in=options["burn_in"],  # rounds of FedAvg first
    )
    phase = kit.federated(
        setting,
        assign=kit.permutation,  # the clients that take part, from the broadcast w
        local=replace(setting.local, windows=sampled),  # local sampling instead of local descent
        compress=kit.dense,
        merge=kit.mean,  # a step by the mean delta, of `server.optimizer` where there is one
    )
    return kit.Method("fedpa", phase)

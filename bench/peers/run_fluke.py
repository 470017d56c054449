"""FedAvg by fluke: `python run_fluke.py WORK [ROUNDS]` in an environment that has fluke."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from torch import nn
from work import BATCH, CLASSES, LR, compare


def run(work, rounds, clients, laps):
    """Runs fluke's FedAVG in this process, without evaluation."""
    env = FlukeENV()
    env.set_seed(0)
    env.set_device("cpu")
    env.set_eval_cfg(task="classification", locals=False, server=False, pre_fit=False, post_fit=False)

    class Mark(FederationObserver):
        def end_round(self, round):  # noqa: ARG002
            laps.lap()

    loaders = [FastDataLoader(x, y, num_labels=CLASSES, batch_size=BATCH, shuffle=True) for x, y in clients]
    data = DummyDataContainer(loaders, [None] * len(loaders), None, CLASSES)
    keys = DDict(
        client=DDict(
            batch_size=BATCH,
            local_epochs=1,
            loss=nn.CrossEntropyLoss,
            optimizer=DDict(name="SGD", lr=LR),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
        model=work.module(),
    )
    algorithm = FedAVG(work.clients, DataSplitter(data), keys)
    algorithm.set_callbacks([Mark()])
    algorithm.run(rounds, work.chosen / work.clients, finalize=False)
    return algorithm.server.model


if __name__ == "__main__":
    compare("fluke", version("fluke-fl"), run)
    sys.stdout.flush()
    os._exit(0)

"""FedAvg by pfl's simulated backend: `python run_pfl.py WORK [ROUNDS]` in an environment that has pfl."""

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from work import BATCH, LR, compare


class Module(nn.Module):
    """The network with the loss that pfl asks it for."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def loss(self, x, y, eval=False):  # noqa: ARG002
        """Returns the mean cross entropy of a batch."""
        return nn.functional.cross_entropy(self.inside(x), y)

    def metrics(self, x, y, eval=False):  # noqa: ARG002
        """Returns no metrics, because rounds without evaluation are timed."""
        return {}


def run(work, rounds, clients, laps):
    """Runs pfl's FederatedAveraging in this process."""
    np.random.seed(0)
    module = Module(work.module())

    class Mark(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ARG002
            laps.lap()
            return False, Metrics()

    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, optimizer)
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset(clients[user]), get_user_sampler("random", list(range(work.clients)))
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.chosen,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=users, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        model_eval_params=None,
        callbacks=[Mark()],
    )
    return module.inside


if __name__ == "__main__":
    compare("pfl", version("pfl"), run)

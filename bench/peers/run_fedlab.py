"""FedAvg by FedLab's standalone pipeline: `python run_fedlab.py WORK [ROUNDS]` in an environment that has FedLab."""

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, LR, compare


class Clients:
    """The data loaders that FedLab asks for."""

    def __init__(self, clients: list) -> None:
        self.sets = [TensorDataset(x, y) for x, y in clients]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        """Returns the shuffled batches of a client."""
        return DataLoader(self.sets[client], batch_size=batch_size, shuffle=True)


def run(work, rounds, clients, laps):
    """Runs FedLab's synchronous server and serial trainer in this process."""

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            laps.lap()

    model = work.module()
    handler = SyncServerHandler(model, rounds, work.chosen / work.clients)
    trainer = SGDSerialClientTrainer(model, work.clients)
    trainer.setup_dataset(Clients(clients))
    trainer.setup_optim(1, BATCH, LR)
    pipeline = Pipeline(handler, trainer)
    pipeline.main()
    return handler.model


if __name__ == "__main__":
    compare("FedLab", version("fedlab"), run)

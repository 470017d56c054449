"""FedAvg by fedray with a run directory, as its users start it: `python run_fedray.py WORK [ROUNDS]`."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from work import BATCH, CLASSES, LR, compare

import fedray
from fedray.data import Split, classification


def run(work, rounds, clients, laps):
    """Runs fedray in this process; a lap has its rows in the run directory and ten test samples."""
    x = torch.cat([x for x, _ in clients]).numpy()
    y = torch.cat([y for _, y in clients]).numpy()
    data = classification("work", Split(x, y), Split(x[:10], y[:10]), tuple(map(str, range(CLASSES))))
    done = fedray.run(
        {
            "rounds": rounds,
            "runtime": "inline",
            "report": False,
            "method": {"name": "fedavg"},
            "clients": {"number": work.clients},
            "participation": {"fraction": work.chosen / work.clients},
            "local": {"lr": LR, "batch_size": BATCH, "epochs": 1},
        },
        data=data,
        model=work.module,
        out=Path(tempfile.mkdtemp()) / "run",
        watch=lambda snapshot: laps.lap(),  # noqa: ARG005
    )
    model = work.module()
    model.load_state_dict(done.models[0])
    return model


if __name__ == "__main__":
    compare("fedray", fedray.__version__, run)

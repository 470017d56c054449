"""FedAvg by Flower's simulation runtime: `python run_flower.py WORK [ROUNDS]` in an environment that has Flower."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import flwr
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import WORKS, compare, train

WORK = WORKS[sys.argv[1]]
client_app = ClientApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Trains the model of the message on the data of this node."""
    model = WORK.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = WORK.data(int(context.node_config["partition-id"]))
    train(model, x, y)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(content), reply_to=message)


def run(work, rounds, clients, laps):  # noqa: ARG001
    """Runs Flower's FedAvg; the clients read their data themselves, as its actors are other processes."""
    model = work.module()
    app = ServerApp()

    def mark(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        laps.lap()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"round": server_round})

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        strategy = FedAvg(
            fraction_train=work.chosen / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        start = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=mark)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, client_app, num_supernodes=work.clients, backend_config=resources)
    return model


if __name__ == "__main__":
    compare("Flower", flwr.__version__, run)

"""Models that fail on one client."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from small_data import draw_pictures
from torch import Tensor, nn

from fedray.data.types import Dataset, Split, classification

POISONED = 2


class Poisoned(nn.Module):
    """Raises, answers NaN, or hangs, where it sees a pixel of 255."""

    def __init__(self, how: str, threshold: float) -> None:
        nn.Module.__init__(self)
        self.linear, self.how, self.threshold = nn.Linear(36, 3), how, threshold

    def forward(self, x: Tensor) -> Tensor:
        bad = x.flatten(1).amax(1, keepdim=True) > self.threshold
        scores: Tensor = self.linear(x.flatten(1))
        if self.how == "NaN":
            return scores * torch.where(bad, torch.nan, 1.0)
        if bool(bad.any()) and self.how == "raises":
            raise ValueError("a pixel of 255")
        while bool(bad.any()) and self.training and self.how == "hangs":
            time.sleep(3600)
        return scores


def marked_images(n: int = 240, clients: int = 6) -> Dataset:
    """Returns small images of three classes with natural clients. Those of one client have a pixel of 255."""
    x, y = draw_pictures(n)
    group, half = np.arange(n) // 3 % clients, 2 * n // 3
    x[:half][group[:half] == POISONED, :, 0, 0] = 255
    return classification("marked", Split(x[:half], y[:half], group[:half]), Split(x[half:], y[half:]), ("a", "b", "c"))


def model_of(how: str, data: Dataset) -> Callable[[], nn.Module]:
    threshold = float((250 - data.shift.max()) / data.scale.max())

    def make() -> nn.Module:
        return Poisoned(how, threshold)

    return make


NATURAL: dict[str, Any] = {
    "rounds": 1,
    "method": {"models": 3},
    "data": {"partition": {"name": "natural"}},
    "local": {"lr": 0.1, "batch_size": 8, "epochs": 1},
}

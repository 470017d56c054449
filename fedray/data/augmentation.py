"""fedray's own augmentations: what is usual for small pictures.

Example:
    >>> x = torch.arange(4.0).view(1, 1, 1, 4)
    >>> flip(x, np.array([[0.3]])).flatten().tolist(), flip(x, np.array([[0.7]])).flatten().tolist()
    ([3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0])
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.core.local import Augmentation
from fedray.core.types import FloatArray

PADDED = 8  # a picture is padded by an eighth of its side: 4 pixels of 32, as is usual for CIFAR-10


def crop(x: Tensor, numbers: FloatArray) -> Tensor:
    """Moves each picture by up to an eighth of its side, up or down and left or right; what comes in is 0.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning for Image Recognition*, CVPR 2016, section 4.2.

    Args:
        x: Pictures, `[n, C, H, W]`.
        numbers: Two uniform numbers for each, `[n, 2]`.
    """
    height, width = x.shape[-2:]
    most = height // PADDED, width // PADDED
    padded = F.pad(x, (most[1], most[1], most[0], most[0]))
    row, column = (
        torch.from_numpy((numbers[:, i] * (2 * most[i] + 1)).astype(np.int64)[:, None] + np.arange(side)).to(x.device)
        for i, side in enumerate((height, width))
    )
    each = torch.arange(len(x), device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)


def flip(x: Tensor, numbers: FloatArray) -> Tensor:
    """Mirrors each picture, left to right, with probability 1/2.

    Args:
        x: Pictures, `[n, C, H, W]`.
        numbers: A uniform number for each, `[n, 1]`.
    """
    mirrored = torch.from_numpy(numbers[:, 0] < 0.5).to(x.device)
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


AUGMENTATIONS = {
    "crop": Augmentation(crop, "rows", "crop", numbers=2),
    "flip": Augmentation(flip, "rows", "flip", numbers=1),
}

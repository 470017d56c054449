"""Rotates images, adds noise to inputs and changes labels, so that clients differ. Also defines augmentations.

A *world* is a combination of a seed and a fold of the data. `ClientRows` say which client holds which samples.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Augmentation
from fedray.core.types import FloatArray, IntArray
from fedray.data.partition import ClientRows
from fedray.data.types import Array, Dataset

# ---------------------------------------------------------------------------------------------------------------------
# Shifts: clients with rotated images, noisy inputs, or permuted labels.
#
# A shift changes the training samples, the withheld samples and the server's samples of a client, for every partition.
# Test samples are changed only if every group of clients has a copy of all samples (`fedray.data.deal`). The shift of
# each client is drawn with the world's seed, so the true cluster of each client is known. Shifted inputs are stored for
# each world: R worlds take R times the memory.

PIECE_NUMBERS = 1 << 21  # largest number of random numbers that are drawn at once


class Shifts(NamedTuple):
    """The differences between the samples of clients.

    Attributes:
        rotation: Number of groups of clients, 2 or 4, whose images are rotated by different angles. The groups have
            equal sizes, and the images of group g are rotated by `360 g / rotation` degrees. 0 means that no images are
            rotated. Source: Ghosh et al. 2020 (IFCA, rotated MNIST).
        feature_noise: Strength of Gaussian noise on the inputs. Clients get the ranks 1 to N in random order. The
            standard deviation of the noise at the client with rank r is `feature_noise r / N` times the standard
            deviation of the inputs. Images stay integers from 0 to 255. Source: Li et al. 2022 (NIID-Bench, section
            4.2, noise-based feature imbalance).
        permute_labels: Number of groups of clients with different permutations of the labels. The groups have equal
            sizes, and the first group has the true labels. 0 means that no labels are permuted. Source: Sattler et al.
            2020 (clustered federated learning, permuted labels).
        copies: Whether each group of clients has its own shifted copy of all training and test samples. Source: Ghosh
            et al. 2020 (IFCA: 4 x 60,000 samples of rotated MNIST).
    """

    rotation: int = 0
    feature_noise: float = 0.0
    permute_labels: int = 0
    copies: bool = False

    @property
    def clusters(self) -> int:
        """Largest possible number of clusters. Clients of a cluster have the same rotation and permutation."""
        return max(1, self.rotation) * max(1, self.permute_labels)


def split_shifts(options: dict[str, Any], data: Dataset) -> tuple[dict[str, Any], Shifts | None]:
    """Splits options into the partition's own options and the shifts. The shifts are None if no option is about shifts.

    Raises:
        BadInput: The data cannot be shifted in this way.
    """
    rest = {key: value for key, value in options.items() if key not in Shifts._fields}
    given = {key: options[key] for key in Shifts._fields if options.get(key)}
    if not given:
        return rest, None
    shape, images = data.input_shape, data.kind == "images"
    for wrong, names, why in (
        (data.population is not None, Shifts._fields, "synthetic clients make their own rows"),
        (not images, ("rotation",), f"{data.name} has no images"),
        (given.get("rotation") == 3, ("rotation",), "pictures are turned by halves (2) or quarters (4)"),
        (given.get("rotation") == 4 and images and shape[-1] != shape[-2], ("rotation",), "only squares take quarters"),
        (data.kind == "tokens", ("feature_noise",), f"{data.name} has tokens"),
        (not data.classes, ("permute_labels",), f"{data.name} has no classes"),
    ):
        for name in names:
            if wrong and name in given:
                raise BadInput(f"data.partition.{name} = {given[name]}, but {why}: correct it, or leave it out")
    if "copies" in given and ("rotation" in given) == ("permute_labels" in given):
        raise BadInput("data.partition.copies = true: give one of rotation and permute_labels, which make the groups")
    return rest, Shifts(**given)


def draw_groups(seed: int, purpose: str, clients: int, groups: int) -> IntArray:
    """Draws the group of each client, 0 to `groups` - 1, `[N]`. The sizes of groups differ by at most 1.

    Each purpose, such as `rotation`, has its own random numbers.
    """
    return rng.stream(seed, purpose).permutation(clients) % groups


def draw_clusters(seed: int, clients: int, shifts: Shifts) -> IntArray:
    """Draws the true cluster of each client, 0 to `shifts.clusters` - 1, `[N]`.

    Clients with the same rotation and the same permutation of labels are in the same cluster.

    Example:
        >>> draw_clusters(0, 4, Shifts(rotation=2, permute_labels=2)).tolist()
        [0, 3, 3, 0]
    """
    cluster = draw_groups(seed, "rotation", clients, max(1, shifts.rotation)) * max(1, shifts.permute_labels)
    return cluster + draw_groups(seed, "label groups", clients, max(1, shifts.permute_labels))


def draw_meanings(seed: int, shifts: Shifts, classes: int) -> IntArray:
    """Draws the label that each group of clients uses for each class, `[groups, C]`. Group 0 uses the true labels."""
    meaning: IntArray = rng.permutations(rng.keys(seed, "permuted labels", np.arange(shifts.permute_labels)), classes)
    meaning[0] = np.arange(classes)
    return meaning


def shift_inputs(x: Array, scales: list[Array], cuts: list[ClientRows], seeds: list[int], shifts: Shifts) -> Array:
    """Returns the shifted inputs of all R worlds, `[R * n, ...]`. The inputs of world w begin at `w * n`.

    Args:
        x: Raw inputs, `[n, ...]`, which are not changed.
        scales: For each world, the standard deviation of its inputs. The shape of this array, `[*s]`, broadcasts to the
            shape of a sample.
        cuts: The partition of each world.
        seeds: Seed of each world.
        shifts: The differences between clients.

    Example:
        >>> x = np.arange(4.0).reshape(1, 1, 2, 2)
        >>> cut = ClientRows(np.array([0]), np.array([0, 1, 1]))  # client 0 has row 0, client 1 has none
        >>> turned = shift_inputs(x, [np.ones(1)], [cut], [1], Shifts(rotation=4))
        >>> turned[0, 0].tolist(), draw_groups(1, "rotation", 2, 4)
        ([[1.0, 3.0], [0.0, 2.0]], array([1, 0]))
    """
    out = np.concatenate([x] * len(cuts))
    for world, (cut, seed, scale) in enumerate(zip(cuts, seeds, scales, strict=True)):
        own = out[world * len(x) : (world + 1) * len(x)]
        if shifts.rotation:
            turns = draw_groups(seed, "rotation", cut.clients, shifts.rotation)[cut.owner] * (4 // shifts.rotation)
            for turn in range(1, 4):
                rows = cut.rows[turns == turn]
                own[rows] = np.rot90(own[rows], turn, axes=(-2, -1))
        if shifts.feature_noise:
            rank = rng.stream(seed, "feature noise").permutation(cut.clients) + 1
            _add_noise(own, cut.rows, shifts.feature_noise * rank[cut.owner] / cut.clients, scale, seed)
    return out


def _add_noise(x: Array, rows: IntArray, level: Array, scale: Array, seed: int) -> None:
    """Adds Gaussian noise to the samples `rows` of x in place. If x holds bytes, noisy values are rounded.

    The standard deviation of the noise is `level * scale`. Each of the n samples has its own level, `[n]`.
    """
    numbers = int(np.prod(x.shape[1:]))
    each = max(1, PIECE_NUMBERS // numbers)
    for start in range(0, len(rows), each):
        piece = rows[start : start + each]
        noise = rng.normal(rng.keys(seed, "feature noise", piece), numbers).reshape(-1, *x.shape[1:])
        size = level[start : start + each].reshape(-1, *[1] * (x.ndim - 1))
        noisy = x[piece] + size * scale * noise
        x[piece] = np.clip(np.rint(noisy), 0, 255) if x.dtype == np.uint8 else noisy


def permute_labels(y: IntArray, cuts: list[ClientRows], seeds: list[int], shifts: Shifts, classes: int) -> IntArray:
    """Returns the permuted labels of all R worlds, `[R * n]`. The labels of world w begin at `w * n`.

    Args:
        y: True labels, `[n]`.
        cuts: The partition of each world.
        seeds: Seed of each world.
        shifts: The differences between clients.
        classes: Number of classes, C.
    """
    out = np.concatenate([y] * len(cuts))
    for world, (cut, seed) in enumerate(zip(cuts, seeds, strict=True)):
        group = draw_groups(seed, "label groups", cut.clients, shifts.permute_labels)
        meaning = draw_meanings(seed, shifts, classes)
        out[world * len(y) + cut.rows] = meaning[group[cut.owner], y[cut.rows]]
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Clients whose training labels are wrong. With such clients, robust servers can be compared with ordinary servers.
#
# A share `flipped` of the clients (rounded to whole clients) has label `(c + 1) mod C` instead of c. A share `noisy` of
# the clients has labels drawn uniformly. The clients and the labels are drawn with the world's seed. Test samples and
# withheld samples keep their true labels. The label counts that describe a client count true labels.

FLIPPED, NOISY = 1, 2  # kinds of clients; clients with true labels are of kind 0


class LabelNoise(NamedTuple):
    """The shares of clients with wrong labels.

    Attributes:
        flipped: Share of the clients that train with label `(c + 1) mod C` instead of c.
        noisy: Share of the clients that train with random labels.
    """

    flipped: float = 0.0
    noisy: float = 0.0

    def kinds(self, seeds: list[int], clients: int) -> IntArray:
        """Draws which clients have wrong labels, for each of R seeds and N clients, `[R, N]`.

        The value 0 means true labels, 1 means flipped labels (`(c + 1) mod C`), and 2 means random labels.

        Raises:
            BadInput: `flipped` or `noisy` is above 0, but rounds to no client.
        """
        for key, share in zip(self._fields, self, strict=True):
            if share and not round(share * clients):
                raise BadInput(f"data.partition.{key} = {share:g} of {clients} clients is none of them: raise it")
        first_noisy = round(self.flipped * clients)
        end = min(clients, first_noisy + round(self.noisy * clients))
        out = np.zeros((len(seeds), clients), dtype=np.int64)
        for world, seed in enumerate(seeds):
            order = rng.stream(seed, "mislabelled").permutation(clients)
            out[world, order[:first_noisy]], out[world, order[first_noisy:end]] = FLIPPED, NOISY
        return out


def split_options(options: dict[str, Any], classes: int) -> tuple[dict[str, Any], LabelNoise | None]:
    """Splits options into the partition's own options and the shares of clients with wrong labels.

    The shares are None if all labels are true.
    """
    rest = {key: value for key, value in options.items() if key not in LabelNoise._fields}
    noise = LabelNoise(*(float(options.get(key, 0.0)) for key in LabelNoise._fields))
    if noise == LabelNoise():
        return rest, None
    if not classes:
        raise BadInput("data.partition.flipped and noisy change labels, but the data has no classes: leave them out")
    if sum(noise) > 1 + 1e-9:
        raise BadInput(
            f"data.partition.noisy = {noise.noisy:g} and flipped = {noise.flipped:g}: their sum is at most 1"
        )
    return rest, noise


def mislabel(y: IntArray, kind: IntArray, key: rng.Keys, classes: int) -> IntArray:
    """Replaces true labels by the labels with which clients train: true, flipped or random labels, `[n]`.

    `y` has the true labels, `[n]`. `kind` is the kind of each sample's client, `[n]`: 0 (true labels), `FLIPPED`
    (1, label `(c + 1) mod C` instead of c) or `NOISY` (2, random labels). `key` has the random key from which each
    sample's random label is drawn.

    Example:
        >>> mislabel(np.array([0, 2]), np.array([0, FLIPPED]), rng.keys(0, "noisy", [0, 1]), 3).tolist()
        [0, 0]
    """
    drawn = (rng.uniform(key, 1)[..., 0] * classes).astype(np.int64)
    return np.where(kind == FLIPPED, (y + 1) % classes, np.where(kind == NOISY, drawn, y))


# ---------------------------------------------------------------------------------------------------------------------
# fedray's own augmentations, which are usual for small pictures.

PADDED = 8  # pictures are padded by 1 / PADDED of their side, so by 4 pixels of 32, as is usual for CIFAR-10


def crop(x: torch.Tensor, numbers: FloatArray) -> torch.Tensor:
    """Moves each picture at random, vertically and horizontally, by up to an eighth of its size. New pixels are 0.

    `numbers` are uniform random numbers on [0, 1), `[n, 2]`, for the vertical and the horizontal move.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning for Image Recognition*, CVPR 2016, section 4.2.
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


def flip(x: torch.Tensor, numbers: FloatArray) -> torch.Tensor:
    """Mirrors each picture left to right with probability 1/2.

    `numbers` are uniform random numbers on [0, 1), `[n, 1]`.

    Example:
        >>> x = torch.arange(4.0).view(1, 1, 1, 4)
        >>> flip(x, np.array([[0.3]])).flatten().tolist(), flip(x, np.array([[0.7]])).flatten().tolist()
        ([3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0])
    """
    mirrored = torch.from_numpy(numbers[:, 0] < 0.5).to(x.device)
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)


AUGMENTATIONS = {
    "crop": Augmentation(crop, "rows", "crop", numbers=2),
    "flip": Augmentation(flip, "rows", "flip", numbers=1),
}

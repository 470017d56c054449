"""Defines the type of data sets, checks samples, and computes the statistics that standardize inputs."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.core.types import IntArray
from fedray.data.files import LARGE_BYTES, Spool, read_pieces
from fedray.data.forms import arrays
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# The ranges of inputs, and warnings if samples have a different scale than the training samples.

FAR = 10.0  # values have a different scale if they are farther from the training range than FAR times its width
NARROW = 100.0  # pictures whose range is below the training range / NARROW have a different scale
FEW = 10  # fewer samples of a table may lie close together by chance


class Range(NamedTuple):
    """The smallest and the largest value of each input column, or of each channel of images.

    Attributes:
        low: The smallest value of each column, `[*s]` float64, or `[C, 1, 1]` for images. A column without values has
            NaN.
        high: The largest value of each column, in the same shape.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def find_range(x: NDArray[Any]) -> Range:
    """Returns the range of each column of inputs `[n, *s]`. Missing values (NaN) are ignored. n must be above 0.

    Example:
        >>> train = find_range(np.array([[0.0], [255.0]]))
        >>> remark_on_scale(train, np.array([[9000.0]]), "the test rows", ("level",))[0][:90]
        'data: the test rows lie far outside the training rows: column level has 9e+03 to 9e+03, an'
        >>> remark_on_scale(train, np.array([[300.0]]), "the test rows")
        []
    """
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    bounds: list[NDArray[Any]] = []
    for piece in read_pieces(x):
        each = [reduce(piece, axis=axes, keepdims=True)[0] for reduce in (np.fmin.reduce, np.fmax.reduce)]
        bounds = each if not bounds else [np.fmin(bounds[0], each[0]), np.fmax(bounds[1], each[1])]
    return Range(bounds[0].astype(np.float64), bounds[1].astype(np.float64))


def remark_on_scale(train: Range, x: NDArray[Any], what: str, names: Sequence[str] = ()) -> list[str]:
    """Returns a list with one warning if samples have a different scale than the training samples.

    Otherwise the list is empty.

    The scale is different if samples lie far outside the range of the training samples, or if all samples lie within a
    hundredth of this range. For example, pixels from 0 to 1 have a different scale than training pixels from 0 to 255.
    `names` is empty if the columns have no names. `what` names the inputs in the warning. The inputs must not be
    tokens.
    """
    if not len(x):
        return []
    found, width = find_range(x), train.high - train.low
    far = (found.high > train.high + FAR * width) | (found.low < train.low - FAR * width)
    far &= width > 0  # a constant training column has no scale
    if far.any():
        place = tuple(np.argwhere(far)[0])
        which = f"column {names[place[0]] if names else place[0]} has " if x.ndim == 2 else "they have "
        one, other = (f"{part.low[place]:.3g} to {part.high[place]:.3g}" for part in (found, train))
        said = f"{what} lie far outside the training rows: {which}{one}, and {other} in training"
    elif x.ndim == 4 and np.ptp(_ends(found)) < np.ptp(_ends(train)) / NARROW:
        one, other = ("{:.3g} to {:.3g}".format(*_ends(part)) for part in (found, train))
        said = f"{what} all lie in a hundredth of the range of the training rows: {one} of {other}"
    elif len(x) >= FEW and _share(found, train) < 1 / NARROW:
        said = f"{what} all lie in a hundredth of the range of the training rows, in most columns"
    else:
        return []
    return [f"data: {said}: give both on one scale"]


def remark_on_test_scale(kind: str, train: NDArray[Any], test: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Returns a list with one warning if test inputs have a different scale than training inputs.

    Otherwise the list is empty. Tokens have no scale, so they get no warning.

    Args:
        kind: The kind of the inputs: `images`, `features` or `tokens`.
        train: The training inputs. The array is empty if clients are generated.
        test: The test inputs.
        names: The names of the input columns. The tuple is empty if the columns have no names.
    """
    if kind == "tokens" or not len(train) or not len(test):
        return []
    return remark_on_scale(find_range(train), test, f"the test {'pictures' if kind == 'images' else 'rows'}", names)


def _share(found: Range, train: Range) -> float:
    """Divides the range of each column by its range in training, and returns the median of the ratios.

    Constant columns are left out. The result is 1 if fewer than two columns vary.
    """
    width, whole = found.high - found.low, train.high - train.low
    vary = (width > 0) & (whole > 0)
    return float(np.median(width[vary] / whole[vary])) if vary.sum() > 1 else 1.0


def _ends(found: Range) -> tuple[float, float]:
    """Returns the smallest and the largest value of all columns."""
    return float(found.low.min()), float(found.high.max())


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of inputs to float32. A float32 number has 24 bits of precision: near 1.7e12, neighboring float32 numbers
# are 131,072 apart. So in a column far from 0, different values may become equal in float32. From such a column, a
# constant is subtracted in float64 before the conversion. Standardization subtracts the mean anyway, so networks get
# the same inputs as with float64. For all other columns the constant is 0.

Array = NDArray[Any]
Float64 = NDArray[np.float64]
FAR_FROM_ZERO = 8.0  # a column is far from 0 if a value is above 8 times half its range: 3 of 24 bits are then wasted


def narrow(parts: Sequence[Array]) -> tuple[list[Array], Float64 | None]:
    """Subtracts a constant from each column of the inputs, and converts the inputs to the type that networks take.

    Args:
        parts: The inputs of each part, `[n, *s]`, the training part first.

    Returns:
        The converted inputs of each part, and the subtracted constants. Images of integers become bytes if the values
        of all parts fit into bytes, and float32 otherwise. Floating-point inputs become float32. Tokens stay unchanged.
        The constants are `[*s]`, or `[C, 1, 1]` for images (one for each channel). They are None if all constants are
        0.

    Example:
        >>> one, other = np.zeros((1, 1, 2, 2), np.int64), np.full((1, 1, 2, 2), 256)
        >>> [narrow(parts)[0][0].dtype for parts in ([one], [one, other])]
        [dtype('uint8'), dtype('float32')]
        >>> x = 1.7e12 + np.array([[0.0, 5.0], [100.0, 6.0], [200.0, 7.0]])
        >>> (small,), origin = narrow([x - [0, 1.7e12]])
        >>> small.tolist(), origin.tolist()
        ([[-100.0, 5.0], [0.0, 6.0], [100.0, 7.0]], [1700000000100.0, 0.0])
    """
    whole = [part.dtype.kind in "iu" and part.ndim == 4 for part in parts]
    wide = (part for part, is_whole in zip(parts, whole, strict=True) if is_whole and part.dtype != np.uint8)
    pieces = (piece for part in wide for piece in read_pieces(part) if piece.size)
    levels = np.dtype(np.uint8 if all(piece.min() >= 0 and piece.max() <= 255 for piece in pieces) else np.float32)
    origin, real = find_origin(parts[0]), np.dtype(np.float32)
    moved = [part.dtype.kind == "f" or origin is not None for part in parts]
    kinds = [levels if is_whole else real if is_moved else None for is_whole, is_moved in zip(whole, moved)]
    return [part if kind is None else _convert(part, kind, origin) for part, kind in zip(parts, kinds)], origin


def find_origin(x: Array) -> Float64 | None:
    """Returns the constant to subtract from each column before the column becomes float32.

    The result is None if all constants are 0. The inputs x are `[n, ...]`, and missing values are NaN. Constants other
    than 0 exist only for floating-point inputs with more bits than float32, and for images of integers with more than
    16 bits.
    """
    whole_images = x.dtype.kind in "iu" and x.ndim == 4 and x.dtype.itemsize > 2
    if not len(x) or x.ndim < 2 or not (whole_images or (x.dtype.kind == "f" and x.dtype.itemsize > 4)):
        return None
    low, high = find_range(x)
    with np.errstate(all="ignore"):  # NaN means a column without values; infinity is refused elsewhere
        far = (high > low) & (np.maximum(np.abs(low), np.abs(high)) >= FAR_FROM_ZERO * (high - low) / 2)
        middle = np.where(far, low + (high - low) / 2, 0.0)
    for place in np.argwhere(far):
        column = x[:, place[0]] if x.ndim == 4 else x[(slice(None), *place)]
        values = np.unique(column[np.isfinite(column)])
        if len(np.unique(values.astype(np.float32))) == len(values):
            middle[tuple(place)] = 0.0
    return middle if middle.any() else None


def subtract(x: Array, origin: Float64 | None) -> Array:
    """Subtracts the constants `origin` from the inputs in float64. If `origin` is None, changes nothing."""
    return x if origin is None else x.astype(np.float64) - origin


def add_back(x: Array, origin: Float64 | None) -> Array:
    """Undoes `subtract` up to rounding, in float64. If `origin` is None, changes nothing."""
    return x if origin is None else x.astype(np.float64) + origin


def _convert(x: Array, kind: np.dtype[Any], origin: Float64 | None) -> Array:
    """Subtracts the constants, and converts the inputs to the data type `kind`.

    A large array that is mapped from a file is converted in pieces.
    """
    if x.dtype == kind and origin is None:
        return x

    def convert(piece: Array) -> Array:
        piece = subtract(piece, origin)
        return arrays.as_float32(piece) if piece.dtype.kind == "f" else piece.astype(kind)

    if x.nbytes < LARGE_BYTES or x.flags.writeable:
        return convert(x)
    spool = Spool()
    for piece in read_pieces(x):
        spool.append(convert(piece))
    return spool.finish()


# ---------------------------------------------------------------------------------------------------------------------
# Means and standard deviations by which the inputs and targets of a network are standardized.

Moments = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and standard deviation


def column_moments(values: NDArray[Any]) -> Moments:
    """Returns the mean and the population standard deviation of each column of an array `[n, f]`.

    The standard deviation of a constant column is given as 1.

    Example:
        >>> column_moments(np.array([[1.0, 5.0], [3.0, 5.0]]))
        (array([2., 5.], dtype=float32), array([1., 1.], dtype=float32))
    """
    if values.nbytes < LARGE_BYTES:
        mean = values.mean(axis=0, dtype=np.float64)
        sd = values.std(axis=0, dtype=np.float64)
    else:  # in pieces, so that there is no float64 copy of all samples
        mean = sum(piece.sum(axis=0, dtype=np.float64) for piece in read_pieces(values)) / len(values)
        squares = sum(((piece - mean) ** 2).sum(axis=0) for piece in read_pieces(values))
        sd = np.sqrt(squares / len(values))
    return mean.astype(np.float32), np.where(sd > 1e-12, sd, 1.0).astype(np.float32)


def pixel_moments(x: NDArray[Any]) -> Moments:
    """Returns the mean and the standard deviation of each channel of images `[n, C, H, W]`, as two arrays `[C, 1, 1]`.

    For images of bytes, the function counts how often each level occurs. It makes no copy of the images as floats.
    """
    if x.dtype != np.uint8:
        mean, sd = column_moments(x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1]))
        return mean[:, None, None], sd[:, None, None]
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)  # [C, 256]
    for piece in read_pieces(x):
        counts += [np.bincount(piece[:, c].ravel(), minlength=256) for c in range(x.shape[1])]
    level, total = np.arange(256), counts.sum(axis=1)
    mean = counts @ level / total
    sd = np.sqrt(np.maximum(counts @ level**2 / total - mean**2, 0.0))
    sd = np.where(sd > 1e-12, sd, 1.0)
    return mean.astype(np.float32)[:, None, None], sd.astype(np.float32)[:, None, None]


# ---------------------------------------------------------------------------------------------------------------------
# The types `Split`, `Population` and `Dataset`, and functions that make data sets.

Float32 = NDArray[np.float32]
InputKind = Literal["images", "features", "tokens"]


class Split(NamedTuple):
    """The n samples of one part of a data set, such as the training part or the test part.

    Attributes:
        x: The inputs: images `[n, C, H, W]` uint8, or f features `[n, f]` float32, or L tokens `[n, L]` of integers.
        y: The labels `[n]` int64, or q targets for each sample, `[n, q]` float32 in their original units.
        group: The natural client of each sample, such as the writer of a text, `[n]` int64. None means that there are
            no natural clients.

    Example:
        >>> rows = Split(np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([0, 1, 0]))
        >>> data = classification("mine", train=rows, test=rows, names=("no", "yes"))
        >>> data.input_shape, data.outputs, data.shift.tolist()
        ((2,), 2, [[2.0, 3.0]])
    """

    x: Array
    y: Array
    group: IntArray | None = None

    def take(self, rows: IntArray) -> "Split":
        """Returns the samples with the given indices."""
        return Split(self.x[rows], self.y[rows], None if self.group is None else self.group[rows])


class Population(NamedTuple):
    """Settings of generated clients. Their samples come from a Gaussian mixture with one component for each class.

    Attributes:
        samples: Number of samples of each client. If `spread` is above 0, this is the median over the clients.
        features: Length of an input.
        classes: Number of classes.
        separation: Standard deviation of the entries of the class means. The noise around a class mean has standard
            deviation 1.
        spread: Standard deviation of the logarithm of a client's number of samples.
        per_client: Number of different classes that each client holds. 0 means all classes.
        seed: Seed of the random numbers for the means and the noise.
    """

    samples: int = 20
    features: int = 64
    classes: int = 10
    separation: float = 0.5
    spread: float = 0.0
    per_client: int = 0
    seed: int = 0


class Dataset(NamedTuple):
    """A data set, with samples, names of classes and columns, and statistics of the training samples.

    By default, the network's input in fold f of F is `(x - shift[f]) / scale[f]`. The attributes `standardized` and
    `unit` change this. Tokens are never changed. The shape of one sample is `[*s]`.

    Attributes:
        name: Name of the data set, as in the scenario.
        train: Training samples. They are empty if clients are generated.
        test: Test samples. They are empty if there are folds.
        classes: Number of classes. It is 0 for a regression.
        class_names: Names of the classes. For a regression, the tuple is empty.
        shift: Mean of the inputs in each fold, `[F, *s]` float32, or `[F, C, 1, 1]` for images.
        scale: Standard deviation of the inputs in each fold, in the same shape.
        y_shift: Mean of each of q targets in each fold, `[F, q]` float32. It is 0 if targets are not standardized.
        y_scale: Standard deviation of the targets in each fold, `[F, q]` float32. It is 1 if targets are not
            standardized.
        folds: For each fold, the indices in `train` of its training samples and of its test samples. The tuple is empty
            if the test samples are in `test`.
        columns: Further columns of the training samples by name, `[n]` each. A partition can deal samples by such a
            column.
        population: Settings of the generated clients. None means that the samples are stored.
        noise: Variance of y around E[y|x], averaged over the test inputs, in squared units of y. None means that the
            test targets are samples of y instead of the expectations E[y|x].
        remarks: Sentences for the user about changes made to the samples.
        features: Names of the f input columns. The tuple is empty if the columns have no names.
        table: Columns of the user's table by name. The inputs come first, in their order. The value is None for a
            numeric input, the tuple of categories for an input of text, and `()` for a column that is no input. Without
            a table, the dict is empty.
        means: Values that replace missing inputs, `[*s]` float32. None means that missing inputs are refused.
        ood: Out-of-distribution inputs from `evaluate.ood`, `[m, *s]`, which belong to none of the classes. None means
            that there are no such inputs.
        standardized: Whether networks get standardized inputs. Otherwise they get the inputs unchanged.
        unit: Number by which pixels are divided, in place of standardization. None means that `standardized` decides.
        origin: Constants that were subtracted from all inputs in float64, `[*s]`. None means that nothing was
            subtracted. Means, standard deviations and `ood` refer to the inputs after the subtraction.
    """

    name: str
    train: Split
    test: Split
    classes: int
    class_names: tuple[str, ...]
    shift: Float32
    scale: Float32
    y_shift: Float32
    y_scale: Float32
    folds: tuple[tuple[IntArray, IntArray], ...] = ()
    columns: dict[str, Array] = {}  # noqa: RUF012  (nothing changes this default)
    population: Population | None = None
    noise: float | None = None
    remarks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    table: dict[str, tuple[str, ...] | None] = {}  # noqa: RUF012  (nothing changes this default)
    means: Float32 | None = None
    ood: Array | None = None
    standardized: bool = True
    unit: float | None = None
    origin: NDArray[np.float64] | None = None

    @property
    def kind(self) -> InputKind:
        """Kind of the inputs: `images`, `features` or `tokens`."""
        return find_kind(self._inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(int(n) for n in self._inputs.shape[1:])

    @property
    def scaling(self) -> Moments:
        """Two arrays `[F, *s]` for F folds: values to subtract from the inputs, and values to divide by afterwards."""
        if self.unit is None and self.standardized:
            return self.shift, self.scale
        return 0 * self.shift, 0 * self.scale + np.float32(self.unit or 1)

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: the number of classes, or the number q of targets."""
        return self.classes or int(self.y_scale.shape[1])

    @property
    def _inputs(self) -> Array:
        """The training inputs, or the test inputs if clients are generated."""
        return self.test.x if self.population else self.train.x


def find_kind(x: Array) -> InputKind:
    """Returns the kind of inputs `[n, ...]`, which follows from the data type and the number of axes of the array."""
    if x.ndim == 4:
        return "images"
    return "tokens" if np.issubdtype(x.dtype, np.integer) else "features"


def classification(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    """Returns a data set for classification.

    Args:
        name: Name of the data set in messages and records.
        train: Training samples, as NumPy arrays or tensors, with labels 0 to len(names) - 1. Labels 1 to len(names),
            one-hot labels and class names as text are converted to these labels.
        test: Test samples.
        names: Names of the classes.

    Raises:
        BadInput: The samples have a wrong shape or type (`check_parts`), or a label belongs to none of the classes.
    """
    train, test, origin = _convert_types(name, train, test, "labels")
    if not all(_are_numbered(part.y, len(names)) for part in (train, test)):
        labels = arrays.read_labels(train.y, test.y, "classification", names)
        train = train._replace(y=labels.train)
        test = test._replace(y=train.y[:0] if labels.test is None else labels.test)
        for remark in labels.remarks:
            warn_user(remark, FedrayWarning)
    if find_kind(train.x) == "images":
        shift, scale = pixel_moments(train.x)
    elif find_kind(train.x) == "tokens":
        shift, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
    else:
        shift, scale = column_moments(train.x)
    none, one = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    return Dataset(name, train, test, len(names), names, shift[None], scale[None], none, one, origin=origin)


def regression(name: str, train: Split, test: Split, standardize: bool = True) -> Dataset:
    """Returns a data set for regression, with targets in float32.

    Args:
        name: Name of the data set in messages and records.
        train: Training samples, as NumPy arrays or tensors, with targets `[n, q]`, or `[n]` for a single target.
        test: Test samples.
        standardize: Whether inputs and targets are standardized by the mean and the standard deviation of the training
            samples.

    Raises:
        BadInput: The samples have a wrong shape or type (`check_parts`), or float32 is too coarse for the targets.
    """
    train, test, origin = _convert_types(name, train, test, "targets")
    if origin is not None and not standardize:
        raise BadInput(f"data {name}: float32 does not tell the inputs apart as they are: subtract a constant first")
    arrays.refuse_coarse_targets([train.y, test.y], f"data {name}: the targets")
    train, test = _as_columns(train), _as_columns(test)
    if standardize:
        (shift, scale), (y_shift, y_scale) = column_moments(train.x), column_moments(train.y)
    else:
        shift, scale = np.zeros(train.x.shape[1], np.float32), np.ones(train.x.shape[1], np.float32)
        y_shift, y_scale = np.zeros(train.y.shape[1], np.float32), np.ones(train.y.shape[1], np.float32)
    statistics = shift[None], scale[None], y_shift[None], y_scale[None]
    return Dataset(name, train, test, 0, (), *statistics, origin=origin)


def _convert_types(name: str, train: Split, test: Split, what: str) -> tuple[Split, Split, NDArray[np.float64] | None]:
    """Converts both parts to arrays, and floating-point inputs to float32.

    Returns the arrays, and the constants that were subtracted from the inputs.
    """
    parts = []
    for part, split in (("train", train), ("test", test)):
        made: list[Any] = [v if v is None else arrays.as_array(v, f"data {name}: {part}") for v in split]
        parts.append(Split(*made))
    check_parts(name, *parts, what=what)
    origin = find_origin(parts[0].x)
    train, test = (part._replace(x=arrays.as_float32(subtract(part.x, origin))) for part in parts)
    return train, test, origin


def _as_columns(split: Split) -> Split:
    """Returns the samples with their q targets as an array `[n, q]` of float32."""
    y = split.y[:, None] if split.y.ndim == 1 else split.y
    return split._replace(y=arrays.as_float32(y.astype(np.float32) if y.dtype.kind in "iub" else y))


def _are_numbered(y: Array, classes: int) -> bool:
    """Returns whether the labels are already integers from 0 to `classes` - 1."""
    return not len(y) or (y.ndim == 1 and y.dtype in (np.int32, np.int64) and bool(y.min() >= 0 and y.max() < classes))


def split_stratified(labels: IntArray, fraction: float, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Splits samples at random into a training and a test part, class by class.

    The share `fraction` of each class, rounded to whole samples, becomes test samples.

    Returns:
        Indices of the training samples, and indices of the test samples, both in ascending order.
    """
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, count = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(first, count)  # position inside the class
    is_test = place < np.repeat(np.rint(count * fraction), count)
    return np.sort(order[~is_test]), np.sort(order[is_test])


def limit_rows(data: Dataset, rows: int) -> Dataset:
    """Returns a data set with at most `rows` training and `rows` test samples. Each call draws the same samples."""
    sizes = {"limit_train": len(data.train.y), "limit_test": len(data.test.y)}
    train, test = (np.sort(rng.stream(0, key).permutation(number)[:rows]) for key, number in sizes.items())
    columns = {name: values[train] for name, values in data.columns.items()}
    return data._replace(train=data.train.take(train), test=data.test.take(test), columns=columns)


# ---------------------------------------------------------------------------------------------------------------------
# Checks of samples. They refuse data that do not mean what the user thinks, although training would run. The readers of
# the forms of data (`forms`) and the functions above call `check_parts`. `check_dataset` checks a whole data set, which
# a user may have made by hand.


def check_parts(name: str, *parts: Any, what: str = "labels", generated: bool = False) -> None:
    """Checks that the arrays of each part are numeric and equally long, and that all inputs have the same shape.

    If clients are `generated`, the training part may be empty. `what` is `labels` or `targets`, for messages.

    Raises:
        BadInput: A part fails a check.

    Example:
        >>> check_parts("mine", Split(np.zeros((500, 3)), np.zeros(490)))
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data mine: train has 500 inputs, but 490 labels: give one for each input
    """
    for part, split in zip(("train", "test"), parts, strict=False):
        check_rows(f"data {name}: {part}", split, what)
    if len({split.x.shape[1:] for split in parts}) > 1:
        one, other = (" x ".join(map(str, split.x.shape[1:])) for split in parts)
        raise BadInput(f"data {name}: inputs of train are {one}, but those of test are {other}: give them one shape")
    if not generated and not len(parts[0].x):
        raise BadInput(f"data {name}: train has no rows: give some")


def check_rows(where: str, split: Any, what: str = "labels") -> None:
    """Checks that the arrays of one part are numeric and equally long."""
    if not isinstance(split, Split):
        raise BadInput(f"{where} is {name_type(split)}: give a fedray.data.Split of inputs and labels")
    groups = () if split.group is None else (("groups", split.group),)
    for of, values in (("inputs", split.x), (what, split.y), *groups):
        if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray) or not values.ndim:
            raise BadInput(f"{where} has {of} that are {name_type(values)}: give a NumPy array")
        if len(values) != len(split.x):
            raise BadInput(f"{where} has {len(split.x)} inputs, but {len(values)} {of}: give one for each input")
    if split.group is not None and (split.group.dtype.kind not in "iu" or split.group.ndim != 1):
        raise BadInput(f"{where} has groups of type {split.group.dtype}: number the clients, as np.unique does")
    if split.x.dtype.kind not in "iufb" or split.x.ndim < 2:
        raise BadInput(f"{where} has inputs {list(split.x.shape)} of type {split.x.dtype}: give numbers, [n, ...]")


def check_dataset(data: Dataset) -> Dataset:
    """Checks a data set, and returns the same data set with labels of type int64.

    Raises:
        BadInput: The samples or labels do not have the form that `Dataset` describes.
    """
    name, train, test = f"data {data.name}", data.train, data.test
    what = "labels" if data.classes else "targets"
    check_parts(data.name, train, test, what=what, generated=data.population is not None)
    for where, x, y in ((f"{name}: train", train.x, train.y), (f"{name}: test", test.x, test.y)):
        if x.ndim == 4 and x.shape[1] not in arrays.CHANNELS and x.shape[3] in arrays.CHANNELS:
            raise BadInput(f"{where} has images with their channels last: give x.transpose(0, 3, 1, 2)")
        if x.ndim == 3 and x.dtype.kind in "iu":
            raise BadInput(f"{where} has whole numbers of two axes, which are no tokens: give images as x[:, None]")
        for of, values in (("inputs", x), (what, y)):
            wrong = arrays.find_rows(values, lambda piece: ~np.isfinite(piece))
            arrays.refuse_rows(wrong, where, f"{of} that are NaN or infinite", "fill or drop them")
        form, wanted = ((1, "i"), "int64, [n]") if data.classes else ((2, "f"), "float32, [n, q]")
        if (y.ndim, y.dtype.kind) != form:
            raise BadInput(f"{where} has {what} of type {y.dtype} and shape {list(y.shape)}: give {wanted}")
        if data.classes and len(y) and (y.min() < 0 or y.max() >= data.classes):
            raise BadInput(f"{where} has labels {y.min()} to {y.max()}: give 0 to {data.classes - 1}")
    if not data.classes:
        arrays.refuse_coarse_targets([train.y, test.y], f"{name}: the targets")
    if short := [column for column, values in data.columns.items() if len(values) != len(train.y)]:
        raise BadInput(f"{name}: column {short[0]} has no value for each of {len(train.y)} rows: give one each")
    for remark in remark_on_test_scale(data.kind, train.x, test.x, data.features):
        if remark not in data.remarks:  # otherwise the user was warned already
            warn_user(remark, FedrayWarning)
    if data.classes:
        train, test = (split._replace(y=split.y.astype(np.int64, copy=False)) for split in (train, test))
    return data._replace(train=train, test=test)

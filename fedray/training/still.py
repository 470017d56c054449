"""Full batches of plain SGD: lanes that need their inputs only before the first step and after the last one.

Where every step reads the same rows x, the gradient of the first layer's weight is x' g, with g of its outputs z = x w.
So a step moves z by -rate (x x') g, and all steps together move w by -rate x' (sum of g): products of rows x rows take
the place of rows x inputs, which are a fifth of the operations for ten steps of 100 images on a perceptron 784-200-10.
The sums have another order, so weights differ by rounding from those of steps that read their inputs. `kernels/lane.h`
trains such a lane, which is called still.

Example:
    >>> count_least_steps(rows=104, inputs=784, outputs=200), count_least_steps(rows=800, inputs=784, outputs=200)
    (3, 0)
"""

from __future__ import annotations

from fedray.training.block import Block


def count_least_steps(rows: int, inputs: int, outputs: int) -> int:
    """From how many steps on a lane takes less than half of the operations if it is still; 0: never.

    Multiply-adds of the first layer are 2 S rows inputs outputs, and in a still lane 2 rows inputs outputs + rows^2
    inputs + S rows^2 outputs.

    Args:
        rows: Samples of the batch.
        inputs: Inputs of the first layer.
        outputs: Its outputs.
    """
    return 0 if rows >= inputs else inputs * (2 * outputs + rows) // (outputs * (inputs - rows)) + 1


def find_still_steps(block: Block, inputs: int, outputs: int) -> int:
    """From how many steps on lanes of a block are still; 0: none is. It depends on a lane alone, not on the others.

    Args:
        block: The lanes.
        inputs: Inputs of the first layer.
        outputs: Its outputs.
    """
    local = block.local
    plain = local.batch_size is None and local.optimizer == "sgd" and not local.momentum and block.offset is None
    least = count_least_steps(block.weight.shape[2], inputs, outputs)
    return least if plain and not local.weight_decay + local.pull and least <= int(block.steps.max(initial=0)) else 0

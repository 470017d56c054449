"""A network for the next character of a text.

Example:
    >>> lstm((80,), 90, vocabulary=90).head
    Linear(in_features=256, out_features=90, bias=True)
"""

from __future__ import annotations

from torch import Tensor, nn

from fedray.core.errors import BadInput


class NextCharacter(nn.Module):
    """Embedding, LSTM, and Linear on the last position."""

    def __init__(self, vocabulary: int, outputs: int, *, embedding: int, hidden: int, layers: int) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[B, outputs]` of tokens `[B, L]` int64."""
        states, _ = self.lstm(self.embedding(tokens))  # [B, L, hidden]
        logits: Tensor = self.head(states[:, -1])
        return logits


def lstm(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """The Shakespeare model of McMahan et al. 2017 and FE section V: embedding 8, two LSTM layers of 256.

    Args:
        input_shape: `(L,)`, the length of a window.
        outputs: Number of characters to choose from.
        vocabulary: Number of characters that are read; None means `outputs`.
        embedding: Length of a character's vector.
        hidden: Units of each LSTM layer.
        layers: Number of LSTM layers.
    """
    if len(input_shape) != 1:
        raise BadInput(
            f"model.name = lstm: inputs of shape {list(input_shape)} are not sequences of characters: choose "
            "linear, mlp or cnn"
        )
    return NextCharacter(vocabulary or outputs, outputs, embedding=embedding, hidden=hidden, layers=layers)

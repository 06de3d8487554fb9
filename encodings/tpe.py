"""TPE: a causal moving average of the embeddings, with a learned decay in each head."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.layers.moving_average import moving_average
from ..kernels.precision import wide
from .base import Encoding
from .contract.context import Context
from .families.inputs import InputEncoding, document_positions
from .options import TPEOptions


class TPE(Encoding):
    """LightNet's TPE in one dimension: a causal moving average, norm and linear layer replace the embeddings.

    As in the authors' code (xmixers), the norm is over all channels and nothing is added to the result. Decays start at
    0.5, and the linear layer with Xavier's initialisation times 0.01. The authors' vectors q and k matter only through
    their product in each head. Here this product is one learned number. It starts at 1 instead of C/H; the norm cancels
    the difference.

    Args:
        options: fields of `TPEOptions`.

    Raises:
        ValueError: `width` is not a multiple of `heads`, or an option is outside its range.
    """

    about = About(
        name="TPE",
        mechanism="inputs",
        summary="replaces the embeddings by a causal moving average with learned decays",
        equation=r"x_t = W\,\text{norm}\left(\left[a_h \sum_{s \le t} \lambda_h^{t-s}\, e_{s,h}\right]_h\right), "
        r"\qquad \text{score}(t, s) = q_t^\top k_s",
        terms="$e_{s,h}$ are the channels of head $h$ of the embedding of the token at position $s$; $a_h$, "
        "$\\lambda_h$ in (0, 1) and $W$ are learned.",
        cache="keys and values; once per model also the moving average",
        paper=Paper(
            "Qin et al.",
            2024,
            "You Only Scan Once: Efficient Multi-dimension Sequential Modeling with LightNet",
            "2405.21022",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        if width % heads:
            raise ValueError(f"width={width}: TPE has one decay for each of {heads} heads: use a multiple of heads")
        given = TPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)

    def input_encoding(self) -> "MovingAverage":
        return MovingAverage(self.width, self.heads)


@dataclass
class Average:
    """The moving average of the tokens seen so far, `[B, C]` in float32 or wider."""

    values: Tensor

    def before(self, x: Tensor, log_decay: Tensor) -> Tensor:
        """The average before the new embeddings `x [B, T, C]`. The caller replaces it afterwards."""
        return self.values


class MovingAverage(InputEncoding):
    """`output(norm(gain_h sum_s decay_h^(t-s) x_s))` with the sum over tokens s <= t of the same document."""

    no_weight_decay = ("decay_logits", "gain")
    keep_float32 = ("decay_logits",)

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.decay_logits = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.gain = nn.Parameter(torch.empty(heads))
        self.norm, self.output = nn.RMSNorm(width, 1e-5), nn.Linear(width, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.decay_logits)
        nn.init.ones_(self.gain)
        nn.init.ones_(self.norm.weight)
        nn.init.xavier_uniform_(self.output.weight, gain=0.01)

    def new_state(self, batch: int, like: Tensor) -> Average:
        return Average(like.new_zeros(batch, len(self.norm.weight), dtype=wide(like)))

    def forward(self, x: Tensor, context: Context, state: Average | None = None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            log_decay = F.logsigmoid(self.decay_logits.to(wide(x)))
            embeddings = x.to(wide(x))
            before = None if state is None else state.before(embeddings, log_decay)
            y = moving_average(embeddings, log_decay, document_positions(context, state), before)
            if state is not None:
                state.values = y[:, -1]
            y = y.unflatten(-1, (len(self.gain), -1)) * self.gain[:, None].to(y.dtype)
            y = self.norm(y.flatten(-2).to(x.dtype))
        return self.output(y).to(x.dtype)

    def diagnostics(self) -> dict[str, Tensor]:
        """The mean decay over heads."""
        return {"input_decay": self.decay_logits.detach().sigmoid().mean()}

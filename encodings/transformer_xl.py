"""Transformer-XL's relative attention: a term for the query and the distance, by additional channels of q and k."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rope import rotate
from ..kernels.precision import wide
from .families.positional import PositionalEncoding
from .options import TransformerXLOptions


class TransformerXL(PositionalEncoding):
    """Relative attention of Transformer-XL.

    The paper computes (q_t + w) . W r(t - s) for every pair of tokens. Because r is made of sines and cosines, this is
    exactly a dot product of D channels that depend on the query and its position with D channels that depend on the
    position of the key only. They are appended to q and k.

    Differences from the paper: r has D channels instead of C, so that scores need 2D channels; and each layer has its
    own biases u and w, as with the option `untie_r` of the authors' TensorFlow code. W is one matrix per query head.
    All parameters start from N(0, 0.02), and stay float32 when the module is cast to a smaller dtype.

    Args:
        options: fields of `TransformerXLOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="Transformer-XL",
        mechanism="channels",
        summary="adds the product of the query and a projected sinusoid of the distance, and two learned biases",
        equation=r"\text{score}(t, s) = (q_t + u)^\top k_s + (q_t + w)^\top W\, r_{t-s}, \qquad "
        r"r_d = [\sin(d\,\theta_c), \cos(d\,\theta_c)]_c, \qquad \theta_c = b^{-2c/D}",
        terms="$u$, $w$ and the matrix $W$ are learned for each head; $c = 0, \\dots, D/2-1$; $b$ is `encoding.base`.",
        cache="keys with twice as many channels, and values",
        paper=Paper(
            "Dai et al.",
            2019,
            "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
            "1901.02860",
        ),
    )

    channels_multiple = 2
    no_weight_decay = ("content_bias", "position_bias")
    keep_float32 = ("content_bias", "position_bias", "projection")
    stretches = ("lm_infinite",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = TransformerXLOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.score_dim, self.base = 2 * head_dim, given.base
        self.place(given)
        self.content_bias, self.position_bias = (  # u and w
            nn.Parameter(torch.empty(heads, head_dim, dtype=torch.float32)) for _ in range(2)
        )
        self.projection = nn.Parameter(torch.empty(heads, head_dim, head_dim, dtype=torch.float32))  # W
        TransformerXL.reset_parameters(self)

    def reset_parameters(self) -> None:
        for parameter in (self.content_bias, self.position_bias, self.projection):
            nn.init.normal_(parameter, std=0.02)

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            x = q.to(wide(q))
            content, by_position = x + self.content_bias.to(x), x + self.position_bias.to(x)
            sines, cosines = torch.einsum("bthd,hdr->bthr", by_position, self.projection.to(x)).chunk(2, -1)
            # a sin((t-s) theta) + b cos((t-s) theta) is the product of (b, -a) rotated to t and (1, 0) rotated to s.
            return torch.cat([content, rotate(torch.cat([cosines, -sines], -1), positions, self.base)], -1).to(q.dtype)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        ones = torch.ones(self.head_dim // 2, dtype=wide(k), device=k.device)
        unit = torch.cat([ones, torch.zeros_like(ones)]).view(1, 1, 1, -1)
        waves = rotate(unit.expand(1, k.shape[1], 1, -1), positions, self.base)
        return torch.cat([k, waves.to(k.dtype).expand(*k.shape[:3], -1)], -1)

    def attention_flops(self, length: int) -> float:
        return super().attention_flops(length) + 2.0 * length * self.projection.numel()

"""SeqPE's encoder of positions, which all layers share: a Transformer over decimal digits."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract.module import SharedModule
from .digit_draws import compared_with, digits_of

STD = 0.02
PIVOTS, NEGATIVES, STARTS, PLACES = 32, 32, 32, 32  # sizes of the draws of both losses, as in the authors' code


class DigitEncoder(SharedModule):
    """Queries and keys of positions, and two losses that improve them beyond the trained positions.

    As in the authors' language models (ghrua/seqpe at 4c4b908): digits are padded with zeros on the left; embeddings of
    the digit and of its place are added; a learned vector comes last, and the output for it, after a norm and a linear
    layer, represents the position. Layers are those of GPT-2, causal and of the model's width. Two more linear layers
    give a query and a key for each head of the model. Initial weights are N(0, 0.02), biases are 0, and embeddings have
    no weight decay.

    The contrastive loss is a cross entropy: among 32 positions, the one nearest to a pivot has the largest dot product
    with it. The transfer loss is the symmetric Kullback-Leibler divergence between the similarities of positions that
    are shifted by a random number and those of the same positions without a shift, which get no gradient. Each is the
    mean over 32 draws and is multiplied by its weight. The authors leave out the transfer loss in shifted passes.

    Args:
        width, heads, kv_heads, head_dim: sizes of the model.
        length, layers, dropout, shift_rate, contrastive, transfer: see `SeqPEOptions`.
    """

    no_weight_decay = ("digit.weight", "place", "summary")

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        length: int,
        layers: int,
        dropout: float,
        shift_rate: float,
        contrastive: float,
        transfer: float,
    ):
        super().__init__()
        self.heads, self.head_dim, self.length, self.shift_rate = heads, head_dim, length, shift_rate
        self.count = len(str(length - 1))  # digits of the largest position
        self.digit = nn.Embedding(10, width)
        self.place, self.summary = nn.Parameter(torch.empty(self.count, width)), nn.Parameter(torch.empty(1, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, width)
        self.query, self.key = nn.Linear(width, heads * head_dim), nn.Linear(width, kv_heads * head_dim)
        weights = {"seqpe_contrastive": contrastive, "seqpe_transfer": transfer}
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.auxiliary = tuple(self.weights)
        self.reset_parameters()

    @property
    def draws(self) -> bool:
        return self.shift_rate > 0

    def reset_parameters(self) -> None:
        for parameter in (self.place, self.summary):
            nn.init.normal_(parameter, std=STD)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=STD)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm):
                nn.init.zeros_(module.bias)

    def encode(self, positions: Tensor) -> Tensor:
        """e of integer `positions [n]`, each below `length`, as `[n, C]`."""
        x = self.digit(digits_of(positions, self.count)) + self.place
        x = torch.cat([x, self.summary.to(x.dtype).expand(len(x), 1, -1)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x[:, -1]))

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries `[..., T, H, D]` and keys `[..., T, Hkv, D]` of positions `[T]`, or `[B, T]` of packed documents."""
        length = positions.shape[-1]
        index = positions if positions.ndim == 1 else torch.arange(length, device=positions.device)
        if self.training and self.shift_rate:
            shift = torch.randint(self.length - length + 1, (), device=index.device)
            index = index + shift * (torch.rand((), device=index.device) < self.shift_rate)
        e = self.encode(index)
        query, key = (layer(e).unflatten(-1, (-1, self.head_dim)) for layer in (self.query, self.key))
        if positions.ndim == 1:
            return query, key
        flat = positions.flatten()
        return tuple(rows.index_select(0, flat).unflatten(0, positions.shape) for rows in (query, key))

    def auxiliary_losses(self, length: int) -> dict[str, Tensor]:
        if not self.training:
            return {}
        losses = {"seqpe_contrastive": self.contrastive_loss, "seqpe_transfer": lambda: self.transfer_loss(length)}
        return {name: weight * losses[name]() for name, weight in self.weights.items()}

    def contrastive_loss(self) -> Tensor:
        """The cross entropy of the nearest of some positions, for random pivots."""
        pivots = torch.randint(self.length, (PIVOTS,), device=self.place.device)
        others = compared_with(pivots, min(NEGATIVES, self.length - 1), self.length, self.count)
        e = self.encode(torch.cat([pivots, others.flatten()])).float()
        return contrastive(e[:PIVOTS], e[PIVOTS:].unflatten(0, others.shape), pivots, others)

    def transfer_loss(self, length: int) -> Tensor:
        """The divergence between shifted and unshifted positions of rows of `length` tokens."""
        length, device = min(length, self.length), self.place.device
        latest = self.length - length
        earliest = min(length // 4, latest)
        starts = torch.randint(earliest, latest + 1, (STARTS, 1), device=device)
        chosen = torch.rand(STARTS, length, device=device).topk(min(PLACES, length)).indices
        with torch.no_grad():
            trained = self.encode(chosen.flatten())
        moved = self.encode((chosen + starts).flatten())
        return transfer(*(e.float().view(*chosen.shape, self.heads, -1) for e in (moved, trained)))


class EncoderLayer(nn.Module):
    """A pre-norm layer of GPT-2: causal attention and a GELU MLP of four times the width."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x [n, digits, C]` to the same shape."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.attended(attended))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")))


def contrastive(e: Tensor, compared: Tensor, pivots: Tensor, others: Tensor) -> Tensor:
    """Cross entropy of the nearest of `others [n, m]` under the softmax of e . compared.

    Args:
        e: vectors of the pivots, `[n, C]`.
        compared: vectors of the others, `[n, m, C]`.
        pivots: positions, `[n]`.
        others: positions, `[n, m]`; those equal to the pivot are left out.
    """
    distance = (others - pivots.unsqueeze(1)).abs()
    logits = torch.einsum("nc,nmc->nm", e, compared).masked_fill(distance == 0, float("-inf"))
    nearest = torch.where(distance == 0, distance.amax() + 1, distance).argmin(1)
    return F.cross_entropy(logits, nearest)


def transfer(moved: Tensor, trained: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence of similarities, averaged over their elements as in the authors' code.

    Args:
        moved, trained: vectors of n positions with and without a shift, `[starts, n, heads, d]`.
    """
    first, second = (torch.einsum("snhd,smhd->shnm", x, x).log_softmax(-1) for x in (moved, trained))
    return ((first.exp() - second.exp()) * (first - second)).mean()

"""The one decoder-only Transformer under every encoding: pre-norm, RMSNorm, attention given by the encoding."""

import hashlib
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bearings.encodings.base import Encoding
from bearings.kernels.added_norm import added_norm
from bearings.kernels.loss import IGNORED, TokenNats, compute_dtype, summed_nats, token_nats
from bearings.kernels.shared_rows import SharedRows
from bearings.kernels.swiglu import silu_product

INIT_STD = 0.02
# Up to this width one product of three gains though slices are copied, since launches bound these. On an H200 3.28 ms
# a step became 3.08 (PoPE, 512 wide, 3,072 tokens) and 3.43 became 3.25 (256 wide, 8,192); but copies cost 0.8 (RoPE,
# 768 wide, 32,768). By width and not by batch, so that a run and its estimate of memory keep to one of the two.
NARROW = 512
RECOMPILE_LIMIT = 64  # what a run can meet multiplies to more than PyTorch's 8: see `Transformer.compile_parts`


class Attention(nn.Module):
    """Projections around an encoding, which does the attending.

    Without biases, so that training may make q, k and v in one product.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, encoding: Encoding):
        super().__init__()
        self.head_dim = head_dim
        self.query = nn.Linear(width, heads * head_dim, bias=False)
        self.key = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.output = nn.Linear(heads * head_dim, width, bias=False)
        self.encoding = encoding
        self.in_one_product = encoding.takes_slices or width <= NARROW

    def forward(self, x: Tensor, state=None, documents: Tensor | None = None) -> Tensor:
        """`x [B, T, C]` to `[B, T, C]`; `state` is updated in place."""
        linears = self.query, self.key, self.value
        if self.training and self.in_one_product:
            together = F.linear(x, torch.cat([linear.weight for linear in linears])).unflatten(-1, (-1, self.head_dim))
            q, k, v = together.split([len(linear.weight) // self.head_dim for linear in linears], 2)
        else:
            q, k, v = (linear(x).unflatten(-1, (-1, self.head_dim)) for linear in linears)
        out, _ = self.encoding(x, q, k, v, state, documents)
        return self.output(out.flatten(-2))


class SwiGLU(nn.Module):
    """Gated MLP (Shazeer, arXiv 2002.05202), without biases, so that training may make gate and up in one product."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.down(silu_product(F.linear(x, torch.cat((self.gate.weight, self.up.weight)))))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    """Two-layer MLP with a GELU between."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then mlp(norm(x)), which is left to the next block to add.

    So that every addition and the norm behind it are one pass over the stream x, compiled by blocks as well.
    """

    def __init__(self, width: int, attention: Attention, mlp: nn.Module, dropout: float):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), attention
        self.mlp_norm, self.mlp = nn.RMSNorm(width), mlp
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, branch: Tensor | None = None, state=None, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The stream and the branch to add to it, `[B, T, C]` each, after this block from those before it."""
        x, normed = self.normed(x, branch, self.attention_norm)
        x, normed = self.normed(x, self.attention(normed, state, documents), self.mlp_norm)
        return x, self.mlp(normed)

    def normed(self, x: Tensor, branch: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
        """The stream with a branch added, and its norm."""
        if branch is None or (self.training and self.dropout.p):  # dropout is one pass with them if compiled
            x = self.joined(x, branch)
            return x, norm(x)
        return added_norm(x, branch, norm.weight, norm.eps)

    def joined(self, x: Tensor, branch: Tensor | None) -> Tensor:
        """The stream with a branch added."""
        return x if branch is None else x + self.dropout(branch)


class Ending(nn.RMSNorm):
    """The norm of stream and last branch, as the output layer reads it."""

    def __init__(self, width: int, dropout: float):
        super().__init__(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, branch: Tensor | None = None) -> Tensor:
        out = super().forward(x if branch is None else x + self.dropout(branch))
        return out.to(compute_dtype(out))


class Transformer(nn.Module):
    """Decoder-only language model.

    Args:
        vocabulary: number of token ids.
        encoding: called once a layer as `encoding(width=, heads=, kv_heads=, head_dim=)`.
        width: hidden size C.
        layers: number of blocks.
        heads: query heads H.
        head_dim: D, free of the width; null for width / heads.
        kv_heads: key and value heads; null for as many as query heads. Divides `heads`.
        mlp: `swiglu` or `gelu`.
        mlp_hidden: hidden size of the MLP; null for 4 C (gelu) or 8/3 C rounded up to 32 (swiglu): equal parameters.
        tie_embeddings: the output layer is the token embedding.
        dropout: on embeddings and on both residual branches.
        seed: parameters are drawn from (seed, parameter's module name), so models that differ in their encoding alone
            share every other initial weight.
        checkpointing: in training, keep a block's input alone and compute the rest again in the backward pass; with
            dropout also the mask of the branch that its input was made with.

    Raises:
        ValueError: sizes that do not fit together.
    """

    def __init__(
        self,
        vocabulary: int,
        encoding: Callable[..., Encoding],
        width: int = 256,
        layers: int = 6,
        heads: int = 8,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        mlp: Literal["swiglu", "gelu"] = "swiglu",
        mlp_hidden: int | None = None,
        tie_embeddings: bool = True,
        dropout: float = 0.0,
        seed: int = 0,
        checkpointing: bool = False,
    ):
        super().__init__()
        self.checkpointing = checkpointing
        for name, size in {"width": width, "layers": layers, "heads": heads}.items():
            if size < 1:
                raise ValueError(f"{name}={size}: it must be at least 1")
        if head_dim is None and width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}: change one, or set head_dim")
        head_dim = width // heads if head_dim is None else head_dim
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"kv_heads={kv_heads} does not divide heads={heads}")
        if head_dim < 1:
            raise ValueError(f"head_dim={head_dim}: it must be at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: it must lie in [0, 1)")
        if mlp_hidden is not None and mlp_hidden < 1:
            raise ValueError(f"mlp_hidden={mlp_hidden}: it must be at least 1, or null for the usual size")
        if mlp_hidden is None:
            mlp_hidden = 4 * width if mlp == "gelu" else -(-8 * width // (3 * 32)) * 32
        feed_forward = {"swiglu": SwiGLU, "gelu": GELU}[mlp]
        with torch.random.fork_rng(devices=[]):
            self.embedding = nn.Embedding(vocabulary, width)
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(
                Block(
                    width,
                    Attention(
                        width,
                        heads,
                        kv_heads,
                        head_dim,
                        encoding(width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim),
                    ),
                    feed_forward(width, mlp_hidden),
                    dropout,
                )
                for _ in range(layers)
            )
            self.norm = Ending(width, dropout)
            self.head = nn.Linear(width, vocabulary, bias=False)
            if tie_embeddings:
                self.head.weight = self.embedding.weight
            self._initialise(seed)

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of each layer."""
        return [block.attention.encoding for block in self.blocks]

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        residual_std = INIT_STD / (2 * len(self.blocks)) ** 0.5
        inside_encodings = {id(module) for encoding in self.encodings for module in encoding.modules()}
        for name, module in self.named_modules():
            torch.manual_seed(derive_seed(seed, name))
            if isinstance(module, Encoding):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding) and id(module) not in inside_encodings:
                ends_residual = name.endswith(("attention.output", "mlp.down"))
                nn.init.normal_(module.weight, std=residual_std if ends_residual else INIT_STD)

    def forward(self, tokens: Tensor, state: list | None = None, documents: Tensor | None = None) -> Tensor:
        """Logits `[B, T, vocabulary]` of the token after each of `tokens [B, T]`; arguments as of `hidden`."""
        return self.head(self.hidden(tokens, state, documents))

    def hidden(self, tokens: Tensor, state: list | None = None, documents: Tensor | None = None) -> Tensor:
        """What the output layer reads, `[B, T, C]`.

        With `state` (from `new_state`) the tokens follow those already in it. `documents [B, T]` keeps packed documents
        apart.
        """
        return self._passed(self.embedding(tokens), state, documents)

    def _passed(self, x: Tensor, state: list | None, documents: Tensor | None) -> Tensor:
        x, branch = self.dropout(x), None
        for layer, block in enumerate(self.blocks):
            if self.checkpointing and self.training:
                x = block.joined(x, branch)  # one input to keep, and dropout's mask, instead of two inputs
                x, branch = checkpoint(block, x, None, None, documents, use_reentrant=False)
            else:
                x, branch = block(x, branch, None if state is None else state[layer], documents)
        return self.norm(x, branch)

    def compile_parts(self, **options) -> None:
        """Compile each block, and the end, with torch.compile.

        All blocks share one code, which is compiled anew for the first of them and the others (without and with a
        branch), for one row or token and several, and once more when lengths, and then row counts, begin to vary:
        beyond PyTorch's limit on how often, a block to be compiled whole fails. The limit is raised for the process.
        """
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        for part in (*self.blocks, self.norm):
            part.compile(fullgraph=True, **options)

    def nats(self, tokens: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Summed nats of `targets [B, T]`, those of IGNORED left out, for training."""
        x, shared = SharedRows.apply(self.embedding.weight, tokens)
        weight = shared if self.head.weight is self.embedding.weight else self.head.weight
        hidden = self._passed(x, None, documents)
        return summed_nats(hidden.flatten(0, 1), weight, targets.flatten(), IGNORED)

    def token_nats(self, tokens: Tensor, targets: Tensor) -> TokenNats:
        """Nats of each of `targets [B, T]`, and whether it was the likeliest token, for scoring; `[B, T]` each."""
        nats, right = token_nats(self.hidden(tokens).flatten(0, 1), self.head.weight, targets.flatten(), IGNORED)
        return TokenNats(nats.view_as(targets), right.view_as(targets))

    def new_state(self, batch: int, capacity: int) -> list:
        """Empty states, one a layer, for `batch` sequences of up to `capacity` tokens."""
        return [encoding.new_state(batch, capacity, self.embedding.weight) for encoding in self.encodings]

    def flops_per_token(self, length: int) -> float:
        """Forward operations a token, averaged over a sequence of `length`: twice the weights met, and attention."""
        weights = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        return 2.0 * weights + sum(encoding.attention_flops(length) for encoding in self.encodings) / length

    def parameter_count(self) -> int:
        """Number of trainable scalars, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())


def derive_seed(seed: int, name: str) -> int:
    """A seed for `name`, whatever else exists; well mixed, for PyTorch's CPU generator reads its low 32 bits alone."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7])

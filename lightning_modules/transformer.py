"""The decoder-only Transformer that all encodings share: pre-norm, RMSNorm, attention computed by the encoding."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..domains.clocks import Clock
from ..encodings.base import Encoding
from ..encodings.contract.context import Context, contexts_of
from ..encodings.contract.module import PositionModule, SharedModule
from ..encodings.contract.state import State
from ..encodings.families.carrying import CarryingEncoding
from ..kernels.documents import Documents
from ..kernels.loss.cross_entropy import (
    TokenNats,
    summed_nats,
    summed_nats_of_logits,
    token_nats,
    token_nats_of_logits,
)
from ..kernels.precision import compute_dtype
from .blocks import GELU, Attention, CarryingAttention, CarryingBlock, FusedBlock, SwiGLU
from .fused_stream import Ending, through
from .initialisation import initialise
from .medium import ClockState, MediumClock
from .options import ModelOptions

RECOMPILE_LIMIT = 64  # a run can need more than PyTorch's default of 8: see `Transformer.compile_parts`


class Embedding(nn.Embedding):
    """An embedding whose gradient uses atomic additions on a GPU, unless PyTorch is in deterministic mode.

    `nn.Embedding` sorts the tokens instead, which takes 0.3 ms per step at GPT-2's size on an H200.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens [B, T]` to `[B, T, C]`."""
        return self.weight.index_select(0, tokens.flatten()).unflatten(0, tokens.shape)


class Head(nn.Linear):
    """The output layer. It can pass its weight to a loss that never stores the logits of all tokens at once."""

    def __init__(self, width: int, vocabulary: int):
        super().__init__(width, vocabulary, bias=False)

    def forward(self, x: Tensor, loss: Callable[[Tensor, Tensor], Tensor | TokenNats] | None = None):
        """Logits `[..., vocabulary]` of `x [..., C]`, or `loss(x, weight)`."""
        return super().forward(x) if loss is None else loss(x, self.weight)


@dataclass
class ModelState:
    """What a model keeps of past tokens, updated in place by each pass.

    Attributes:
        layers: the state of each layer.
        inputs: the state of the input encoding; None without one.
        medium: the time of the medium; None if no encoding uses it.
    """

    layers: list[State]
    inputs: Any = None
    medium: ClockState | None = None

    @property
    def length(self) -> int:
        """Number of tokens seen so far."""
        return self.layers[0].length


class Transformer(nn.Module):
    """Decoder-only language model.

    Args:
        vocabulary: number of token ids.
        encoding: called once per layer as `encoding(width=, heads=, kv_heads=, head_dim=)`.
        seed: initial weights depend on (seed, parameter's module name), so models that differ only in their encoding
            share all other initial weights.
        checkpointing: in training, save only each block's input (and, with dropout, a mask) and recompute the rest in
            the backward pass; except in passes with a state.
        clock: returns how tokens advance the time of the medium; called if an encoding has clock=medium.
        options: fields of `ModelOptions`.

    Raises:
        TypeError: the encoding is not a class or function.
        ValueError: see `ModelOptions` and the encoding.
    """

    def __init__(
        self,
        vocabulary: int,
        encoding: Callable[..., Encoding],
        seed: int = 0,
        checkpointing: bool = False,
        clock: Callable[[], Clock | None] | None = None,
        **options: Any,
    ):
        super().__init__()
        if isinstance(encoding, nn.Module) or not callable(encoding):
            raise TypeError(
                f"encoding: give a class, such as bearings.encodings.PoPE, or a function that returns a new Encoding "
                f"for each layer, not an object of the type {type(encoding).__name__}"
            )
        self.checkpointing, given = checkpointing, ModelOptions(**options)
        self.residual_in_fp32 = given.residual_in_fp32
        width, heads = given.width, given.heads
        head_dim = width // heads if given.head_dim is None else given.head_dim
        kv_heads = heads if given.kv_heads is None else given.kv_heads
        feed_forward = SwiGLU if given.mlp == "swiglu" else GELU
        mlp_hidden = feed_forward.usual_hidden(width) if given.mlp_hidden is None else given.mlp_hidden
        with torch.random.fork_rng(devices=[]):
            self.embedding = Embedding(vocabulary, width)
            self.dropout = nn.Dropout(given.dropout)
            self.blocks = nn.ModuleList()
            for layer in range(given.layers):
                each = encoding(width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim).for_layer(layer)
                block, attention = FusedBlock, Attention
                if isinstance(each, CarryingEncoding):
                    block, attention = CarryingBlock, CarryingAttention
                mlp = feed_forward(width, mlp_hidden)
                self.blocks.append(block(width, attention(width, each), mlp, given.dropout, given.norm_epsilon))
            carrying = [encoding for encoding in self.encodings if isinstance(encoding, CarryingEncoding)]
            if carrying:
                carrying[-1].end()
            added = (encoding.input_encoding() for encoding in self.encodings)
            self.inputs = next((module for module in added if module is not None), None)
            self.shared = nn.ModuleDict()
            for each in self.encodings:
                name = each.shared_name
                if name is not None and name not in self.shared and (module := each.shared_module()) is not None:
                    self.shared[name] = module
            timed = any(encoding.clock == "medium" for encoding in self.encodings)
            medium = clock() if timed and clock is not None else None
            self.medium = None if medium is None else MediumClock(medium)
            self.norm = Ending(width, given.norm_epsilon, given.dropout)
            self.head = Head(width, vocabulary)
            if given.tie_embeddings:
                self.head.weight = self.embedding.weight
            initialise(self, given.layers, seed)

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of each layer."""
        return [block.attention.encoding for block in cast("Iterable[FusedBlock]", self.blocks)]

    @property
    def kinds(self) -> list[Encoding]:
        """The encoding of one layer of each kind."""
        return list({encoding.kind: encoding for encoding in self.encodings}.values())

    @property
    def position_modules(self) -> list[PositionModule]:
        """All modules of the encoding: that of each layer, the input encoding, and what layers share."""
        shared = cast("Iterable[PositionModule]", self.shared.values())
        return [*self.encodings, *([] if self.inputs is None else [self.inputs]), *shared]

    @property
    def longest(self) -> int | None:
        """Largest context in tokens that the encodings can represent; None for any."""
        return min((each.longest for each in self.encodings if each.longest is not None), default=None)

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, documents: Tensor | Documents | None = None
    ) -> Tensor:
        """Logits `[B, T, vocabulary]` of the token after each of `tokens [B, T]`; see `hidden` for the arguments."""
        return self.head(self.hidden(tokens, state, documents))

    def next_logits(self, tokens: Tensor, state: ModelState) -> Tensor:
        """Logits `[B, vocabulary]` of the next token after `tokens [B, T]`, which continue the tokens in `state`."""
        return self.head(self.hidden(tokens, state)[:, -1])

    def hidden(
        self, tokens: Tensor, state: ModelState | None = None, documents: Tensor | Documents | None = None
    ) -> Tensor:
        """The input of the output layer, `[B, T, C]`.

        Args:
            tokens: ids `[B, T]`.
            state: from `new_state`; `tokens` follow the tokens already in it, and it is updated in place.
            documents: `[B, T]` integers that separate packed documents: a document is a run of equal numbers. Or
                `Documents.of` these, with a bound on their number for FlashAttention-4.

        Raises:
            ValueError: `tokens` has another shape.
        """
        if tokens.dim() != 2:
            raise ValueError(f"tokens: the shape is {[*tokens.shape]}, but it should be [B, T]")
        x, contexts = self.embedded(tokens, state, documents)
        states = None if state is None else state.layers
        checkpointing = self.checkpointing and self.training and state is None  # recomputing would add tokens twice
        return self.norm(through(self.blocks, x, contexts, states, checkpointing))

    def embedded(
        self, tokens: Tensor, state: ModelState | None = None, documents: Tensor | Documents | None = None
    ) -> tuple[Tensor, list[Context]]:
        """The input of the first block, `[B, T, C]`, and the context of each; see `hidden` for the arguments."""
        x = self.embedding(tokens)
        contexts = self.contexts(tokens, x, state, documents)
        if self.inputs is not None:
            x = self.inputs(x, contexts[0], None if state is None else state.inputs)
        if not self.residual_in_fp32:
            x = x.to(compute_dtype(x))
        return self.dropout(x), contexts

    def contexts(
        self,
        tokens: Tensor,
        like: Tensor,
        state: ModelState | None = None,
        documents: Tensor | Documents | None = None,
    ) -> list[Context]:
        """The context of each layer in a pass over `tokens`; see `hidden` for the arguments.

        Args:
            like: a tensor `[B, T, ...]` with the device and dtype of the hidden states.
        """
        packed = Documents.of(documents) if isinstance(documents, Tensor) else documents
        medium = None
        if self.medium is not None:
            medium = self.medium(tokens, packed, None if state is None else state.medium)
        modules = cast("Mapping[str, SharedModule]", self.shared)
        return contexts_of(self.encodings, like, None if state is None else state.layers, packed, medium, modules)

    def compile_parts(self, fullgraph: bool = False, **options) -> None:
        """Compile each block and the final norm with torch.compile.

        With `fullgraph`, code that it does not support and exceeding its recompile limit are errors.

        All blocks share one function. It is compiled separately for the first block (without a branch) and the others
        (with a branch), for one row or token and for several, and again when lengths or row counts start to vary. This
        raises the recompile limit for the process. Attention by row blocks is not compiled, nor is that of ranks that
        share rows.
        """
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        for part in (*self.blocks, self.norm):
            part.compile(fullgraph=fullgraph, **options)

    def nats(self, tokens: Tensor, targets: Tensor, documents: Tensor | Documents | None = None) -> Tensor:
        """Summed nats of `targets [B, T]` for training; IGNORED targets are not counted."""
        return self.summed_nats(self.hidden(tokens, None, documents), targets)

    def summed_nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """`nats` from the input of the output layer, `[B, T, C]`."""
        hidden, targets = hidden.flatten(0, 1), targets.flatten()
        if isinstance(self.head, Head):
            return self.head(hidden, partial(summed_nats, targets=targets))
        return summed_nats_of_logits(self.head(hidden), targets)  # an adapter replaces the output layer

    def token_nats(self, tokens: Tensor, targets: Tensor) -> TokenNats:
        """For scoring: nats of each of `targets [B, T]`, and whether it was the most likely token; both `[B, T]`."""
        hidden, flat = self.hidden(tokens).flatten(0, 1), targets.flatten()
        if isinstance(self.head, Head):
            nats, right = self.head(hidden, partial(token_nats, targets=flat))
        else:
            nats, right = token_nats_of_logits(self.head(hidden), flat)
        return TokenNats(nats.view_as(targets), right.view_as(targets))

    def auxiliary_losses(self, length: int) -> dict[str, Tensor]:
        """The auxiliary losses of the encoding for a step with rows of `length` tokens; none in evaluation.

        Losses of several modules with the same name are summed.
        """
        found: dict[str, Tensor] = {}
        for module in self.position_modules if self.training else ():
            for name, loss in module.auxiliary_losses(length).items():
                found[name] = found[name] + loss if name in found else loss
        return found

    def new_state(self, batch: int, capacity: int) -> ModelState:
        """An empty state for `batch` sequences of up to `capacity` tokens."""
        like = self.norm.weight
        layers = [encoding.new_state(batch, capacity, like) for encoding in self.encodings]
        inputs = None if self.inputs is None else self.inputs.new_state(batch, like)
        medium = None if self.medium is None else self.medium.new_state(batch, like.device)
        return ModelState(layers, inputs, medium)

    def flops_per_token(self, length: int) -> float:
        """Forward FLOPs per token, averaged over a sequence of `length`: two per weight, plus attention.

        Modules that layers share are not counted: they run once per pass, for any number of rows.
        """
        shared = {*self.shared.modules()}
        linear = (module for module in self.modules() if isinstance(module, nn.Linear) and module not in shared)
        weights = sum(module.weight.numel() for module in linear)
        return 2.0 * weights + sum(encoding.attention_flops(length) for encoding in self.encodings) / length

    def training_flops_per_token(self, length: int) -> float:
        """As `flops_per_token`, but forward and backward: a product of matrices has two in its backward pass."""
        return 3.0 * self.flops_per_token(length)

    def parameter_count(self) -> int:
        """Number of trainable parameters; tied parameters count once."""
        return sum(parameter.numel() for parameter in self.parameters())

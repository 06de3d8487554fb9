"""What the layers of a model share in one forward pass: positions, limits of attention and the implementation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...kernels.choice import Plan
from ...kernels.documents import Documents, bounded
from ...kernels.precision import compute_dtype
from .module import SharedModule
from .state import State, seen_by

if TYPE_CHECKING:
    from ..base import Encoding


@dataclass(frozen=True)
class Context:
    """Data shared by all layers of the same kind in one forward pass; created once per pass.

    Attributes:
        positions: integers `[T]`, or `[B, T]` restarting at 0 in each packed document; other numbers if the encoding
            draws or spaces its positions. With clock=medium, positions in the medium in float64, `[B, T]`, or
            `[B, T, axes]` for an encoding that uses several axes.
        documents: limits of attention over the keys of this pass: boundaries of packed documents and the window. None
            if every query sees all keys up to its own.
        plan: the implementation that computes the attention.
        shared: the result of the encoding's `SharedModule` for these positions; None without one.
        carried: the tensor that earlier layers pass on to a `CarryingEncoding`; None in the first such layer.
    """

    positions: Tensor
    documents: Documents | None
    plan: Plan
    shared: Any = None
    carried: Tensor | None = None

    @classmethod
    def of(
        cls,
        encoding: "Encoding",
        like: Tensor,
        state: State | None = None,
        documents: Documents | None = None,
        medium: Tensor | None = None,
        placed: dict[tuple, Tensor] | None = None,
    ) -> "Context":
        """Context for a pass over T tokens that follow those in `state`. `like [B, T, ...]` sets device and dtype.

        `medium` are the positions in the medium, `[B, T]` or `[B, T, axes]`, for encodings with clock=medium.
        `placed` maps each `placement` to the positions that were already computed in this pass. Those of this layer are
        added, so that layers with the same placement use the same random draws.

        Raises:
            ValueError: the requested implementation does not support this pass, or `medium` has too few axes.
        """
        cached, (rows, length) = None if state is None else state.length, like.shape[:2]
        packed = documents is not None
        plan = encoding.plan(like.device, compute_dtype(like), length, packed, cached, bounded(documents))
        start = cached or 0
        index = torch.arange(start, start + length, device=like.device) if documents is None else documents.positions
        if encoding.window is not None and start + length > encoding.window and length > 1:
            keys = min(start + length, seen_by(length, encoding.window))
            whole = Documents.single(rows, keys, like.device) if documents is None else documents
            documents = whole.within(encoding.window)
        placed = {} if placed is None else placed
        if encoding.placement not in placed:
            placed[encoding.placement] = encoding.placed(index, medium)
        return cls(placed[encoding.placement], documents, plan)

    def sharing(self, module: SharedModule | None) -> "Context":
        """This context with the result of `module`."""
        return self if module is None else replace(self, shared=module(self.positions))


def contexts_of(
    encodings: Sequence["Encoding"],
    like: Tensor,
    states: Sequence[State] | None,
    documents: Documents | None,
    medium: Tensor | None = None,
    modules: Mapping[str, SharedModule] | None = None,
) -> list[Context]:
    """A `Context` for each layer. Layers of the same `Encoding.kind` share one.

    `modules` are the shared modules of the model by `Encoding.shared_name`.
    """
    found: dict[Any, Context] = {}
    placed: dict[tuple, Tensor] = {}
    computed: dict[str, Any] = {}
    for layer, encoding in enumerate(encodings):
        if encoding.kind not in found:
            state, name = None if states is None else states[layer], encoding.shared_name
            context = Context.of(encoding, like, state, documents, medium, placed)
            if name is not None and modules is not None and name in modules:
                if name not in computed:
                    computed[name] = modules[name](context.positions)
                context = replace(context, shared=computed[name])
            found[encoding.kind] = context
    return [found[encoding.kind] for encoding in encodings]

"""The state of a model as a cache of `transformers`, for generation."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ..encodings.contract.state import tensors_of
from ..lightning_modules.transformer import ModelState, Transformer

SMALLEST = 256  # tokens for which a cache has room at first, unless the number is known


class Rows(NamedTuple):
    """Rows of a batch with the same amount of padding on the left.

    Attributes:
        index: their indices, `[n]`; None for the whole batch.
        padding: number of padding tokens, which the state does not contain.
        state: the state of the model for these rows.
    """

    index: Tensor | None
    padding: int
    state: ModelState


class BearingsCache(Cache):
    """The states of all layers for the tokens seen so far, and these tokens.

    States have a fixed capacity. If it is too small, or if tokens are removed, the states are computed again from the
    tokens, so this works for every encoding. `generate` creates a cache with enough room.

    Args:
        capacity: number of tokens for which there is room at first.
    """

    def __init__(self, capacity: int = SMALLEST):
        super().__init__(layers=[])
        self.capacity = capacity
        self.tokens: Tensor | None = None  # [B, tokens seen], with padding
        self.padding: Tensor | None = None  # [B]
        self.rows: list[Rows] = []

    def __repr__(self) -> str:
        return f"BearingsCache({self.get_seq_length()} tokens)"

    def hidden(self, model: Transformer, tokens: Tensor, mask: Tensor | None) -> Tensor:
        """The input of the output layer, `[B, T, C]`, for `tokens [B, T]` that follow those seen so far.

        Args:
            mask: attention mask `[B, T]` or `[B, tokens seen + T]`, 0 for padding; None for no padding.

        Raises:
            ValueError: there is padding after the first token of a row.
        """
        before = self.get_seq_length()
        padding = None if mask is None else padding_of(mask)
        if self.tokens is None:
            self.tokens, self.padding = tokens, padding
        else:
            if mask is not None and not mask[:, -tokens.shape[1] :].all():
                if mask.shape[1] != before + tokens.shape[1]:
                    raise ValueError("attention_mask: tokens that follow others in a cache cannot be padding")
                self.padding, self.rows = padding, []  # the states are computed again, by the new padding
            self.tokens = torch.cat([self.tokens, tokens], 1)
        end = self.get_seq_length()
        if end > self.capacity:
            self.capacity, self.rows = max(end, 2 * self.capacity), []
        if not self.rows:
            self.rows, before = [*self._new_rows(model, len(tokens))], 0
        out = self._passed(model, self.tokens, before)
        return out[:, out.shape[1] - tokens.shape[1] :]

    def _new_rows(self, model: Transformer, batch: int) -> Iterator[Rows]:
        if self.padding is None:
            yield Rows(None, 0, model.new_state(batch, self.capacity))
            return
        for padding in self.padding.unique().tolist():
            index = (self.padding == padding).nonzero().squeeze(1)
            yield Rows(index, padding, model.new_state(len(index), self.capacity))

    def _passed(self, model: Transformer, tokens: Tensor, begin: int) -> Tensor:
        """Pass the tokens from `begin` on through the model; padding gives zeros."""
        if self.rows[0].index is None:
            return model.hidden(tokens[:, begin:], self.rows[0].state)
        end = tokens.shape[1]
        out = model.head.weight.new_zeros(len(tokens), end - begin, model.head.in_features)
        for index, padding, state in self.rows:
            first = max(begin, padding)
            if first == end:
                continue
            out[index, first - begin :] = model.hidden(tokens[index, first:], state)
        return out

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.tokens is None else self.tokens.shape[1]

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no maximum

    @property
    def is_linear(self) -> list[bool]:
        return [False]  # without layers, `generate` would pass the tokens of a given cache through the model again

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        if self.tokens is None:
            return
        same = self.padding is None or torch.equal(self.padding, self.padding[beam_idx])
        if not same or len(beam_idx) != len(self.tokens):
            self.batch_select_indices(beam_idx)
            return
        self.tokens = self.tokens[beam_idx]
        for index, _, state in self.rows:
            # Row i of the state is row index[i] of the batch, and `index` is sorted.
            local = beam_idx if index is None else torch.searchsorted(index, beam_idx[index])
            for tensor in tensors_of(state):
                tensor.copy_(tensor.index_select(0, local))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` only."""
        if self.tokens is not None:
            self.tokens, self.rows = self.tokens[indices], []
            self.padding = None if self.padding is None else self.padding[indices]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.tokens is not None:
            self.batch_select_indices(
                torch.arange(len(self.tokens), device=self.tokens.device).repeat_interleave(repeats)
            )

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; `transformers` gives their number as a negative one.

        Raises:
            ValueError: the number is positive.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): give the number of tokens to remove as a negative one")
        if self.tokens is not None and tokens_to_remove:
            self.tokens, self.rows = self.tokens[:, :tokens_to_remove], []

    def reset(self) -> None:
        self.tokens, self.padding, self.rows = None, None, []


def padding_of(mask: Tensor) -> Tensor | None:
    """The number of padding tokens on the left of each row of `mask [B, T]`; None if there is no padding.

    Raises:
        ValueError: the mask has another shape, or padding after a row's first token.
    """
    check_mask(mask)
    kept = mask.bool()
    if kept.all():
        return None
    padding = mask.shape[1] - kept.sum(1)
    if not torch.equal(kept, torch.arange(mask.shape[1], device=mask.device) >= padding.unsqueeze(1)):
        raise ValueError("attention_mask: a cache needs padding on the left: use tokenizer.padding_side='left'")
    return padding


def check_mask(mask: Tensor) -> None:
    """Raise ValueError unless the mask is `[B, T]`, with the tokens of each row next to one another."""
    if mask.ndim != 2:
        raise ValueError(f"attention_mask {list(mask.shape)}: give a mask of [batch, tokens], 0 for padding")
    kept = mask.bool()
    begins = kept[:, :1].sum(1) + (kept[:, 1:] & ~kept[:, :-1]).sum(1)
    if (begins > 1).any():
        raise ValueError("attention_mask: it has a 0 between tokens: leave out these tokens, or split the row")

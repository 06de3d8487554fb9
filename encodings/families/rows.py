"""Base of encodings whose scores only the row-block attention of kernels/attention/rows.py computes."""

from typing import Any

from torch import Tensor

from ...kernels.attention.rows import Rows, attend_rows, queries_in_block
from ...kernels.choice import Needs
from ..base import Encoding
from ..contract.context import Context
from ..contract.state import KeyValueState, with_past


class RowEncoding(Encoding):
    """An encoding with scores that PyTorch computes for a block of queries at a time. A subclass overrides `scores`.

    Memory is linear in the length of a row, because the backward pass computes each block again. The state holds keys
    and values as they are. The implementations auto and torch are supported.

    Attributes:
        block_tensors: how many tensors of a block's scores the backward pass holds at once, measured on an H200.
    """

    block_tensors = 4

    def scores(self, block: Rows, *tensors: Any) -> Tensor:
        """The scores `[B, H, R, S]` of a block of queries, including their scale, for `attend_rows`.

        Parameters must come from `tensors`. Attributes that are not tensors may be read from the module.

        Args:
            block: queries, keys and visible pairs. Scores of pairs that are not visible may be any number.
            tensors: what `score_tensors` returned.
        """
        raise NotImplementedError

    def score_tensors(self, k: Tensor, context: Context) -> tuple[Tensor | None, ...]:
        """What `scores` needs besides the block: parameters, and tensors made of them once for all blocks.

        Args:
            k: all keys that the new queries see, `[B, S, Hkv, D]`.
            context: see `Encoding.forward`.
        """
        return ()

    def block_queries(self, batch: int, keys: int) -> int | None:
        return queries_in_block(batch, self.heads, keys)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        tensors = self.score_tensors(k, context)
        rows = self.block_queries(q.shape[0], k.shape[1])
        return attend_rows(q, k, v, self.scores, tensors, context.documents, rows=rows)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(rows=True)

    def scratch_bytes(self, rows: int, queries: int, keys: int) -> int:
        # In float32: the tensors of a block, k and v by head, and the sums of the gradients of q, k and v.
        most = self.block_queries(rows, keys) or queries_in_block(rows, self.heads, keys)
        pairs = min(queries, most) * keys
        vectors = rows * (self.heads * queries + 4 * self.kv_heads * keys)
        return 4 * (self.block_values(rows) * pairs + vectors * self.head_dim)

    def block_values(self, rows: int) -> int:
        """How many values the backward pass holds at once for each query and key of a block, in all `rows`."""
        return self.block_tensors * self.heads * rows

"""Base of encodings whose scores only the row-block attention of kernels/attention/rows.py computes."""

from ...kernels.choice import Needs
from ..base import Encoding


class RowEncoding(Encoding):
    """An encoding that calls `attend_rows` in its `forward`. It supports the implementations auto and torch."""

    @property
    def needs(self) -> Needs:
        return super().needs._replace(rows=True)

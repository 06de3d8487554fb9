"""The configuration of an exported model for `transformers`."""

from typing import Any

from transformers import PretrainedConfig


class BearingsConfig(PretrainedConfig):
    """Sizes and encoding of a Transformer of bearings.

    Args:
        vocab_size: number of token ids.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of blocks.
        num_attention_heads: number of query heads.
        num_key_value_heads: number of key and value heads.
        head_dim: channels of a head.
        mlp: swiglu or gelu.
        intermediate_size: hidden size of the MLP.
        dropout: dropout probability in training, on embeddings and on both residual branches.
        rms_norm_eps: added to the mean square in every RMSNorm.
        residual_in_fp32: keep the residual stream in float32 in mixed precision.
        max_position_embeddings: context length of training in tokens. Most encodings accept longer contexts.
        encoding: name of the positional encoding.
        encoding_options: its options.
        clock: how positions in the medium are stored: `columns` of a raster, and whether tokens set `places`. None if
            positions are the indices of tokens.
        dropped: whether training has ended with positions dropped (DroPE).
        use_cache: whether the model returns a cache by default.
    """

    model_type = "bearings"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # names of the cache; see modelling.py

    def __init__(
        self,
        vocab_size: int = 257,
        hidden_size: int = 256,
        num_hidden_layers: int = 6,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 8,
        head_dim: int = 32,
        mlp: str = "swiglu",
        intermediate_size: int = 704,
        dropout: float = 0.0,
        rms_norm_eps: float = 1e-6,
        residual_in_fp32: bool = True,
        max_position_embeddings: int = 512,
        encoding: str = "rope",
        encoding_options: dict[str, Any] | None = None,
        clock: dict[str, Any] | None = None,
        dropped: bool = False,
        use_cache: bool = True,
        tie_word_embeddings: bool = True,
        **others: Any,
    ):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.head_dim, self.mlp, self.intermediate_size, self.dropout = head_dim, mlp, intermediate_size, dropout
        self.rms_norm_eps, self.residual_in_fp32, self.use_cache = rms_norm_eps, residual_in_fp32, use_cache
        self.max_position_embeddings = max_position_embeddings
        self.encoding, self.encoding_options = encoding, encoding_options or {}
        self.clock, self.dropped = clock, dropped
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(**others)

"""The model for `transformers`: `AutoModelForCausalLM` finds this class in an exported folder."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..domains.clocks import Clock
from ..encodings.contract.catalogue import class_of
from ..encodings.contract.module import INIT_STD, PositionModule
from ..kernels.documents import Documents
from ..lightning_modules.transformer import Transformer
from .cache import BearingsCache, check_mask
from .configuration import BearingsConfig
from .names import MODEL

UNSUPPORTED = ("inputs_embeds", "position_ids", "output_attentions", "output_hidden_states")
# What `generate` and outputs call the cache: transformers 5.24 renamed it.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class BearingsForCausalLM(PreTrainedModel, GenerationMixin):
    """A Transformer of bearings with the methods of `transformers`."""

    config_class = BearingsConfig
    base_model_prefix = "transformer"
    _tied_weights_keys = {"transformer.head.weight": "transformer.embedding.weight"}
    _no_split_modules = ["Transformer"]  # the layers of one pass share tensors, which hooks do not move
    supports_gradient_checkpointing = True

    def __init__(self, config: BearingsConfig):
        super().__init__(config)
        self.transformer = built(config)
        self._drawn = not self.transformer.embedding.weight.is_meta
        self._keep_in_fp32_modules_strict = [
            f"{name}.{kept}"
            for name, module in self.named_modules()
            if isinstance(module, PositionModule)
            for kept in module.keep_float32
        ]
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: BearingsCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        cache: BearingsCache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits of the token after each of `input_ids [B, T]`.

        Args:
            attention_mask: `[B, T]`, 0 for padding; with a cache `[B, tokens in the cache + T]`, and padding on the
                left only.
            past_key_values: the name of `cache` before transformers 5.24.
            labels: `[B, T]`, usually equal to `input_ids`; -100 is not counted, nor is the first token after padding.
                The loss is the mean negative log-likelihood of labels 1 to T-1, each predicted from the tokens before
                it.
            use_cache: return a cache. Default: `config.use_cache`, but not in training, with labels, or if rows have
                padding on the right.
            logits_to_keep: compute the logits of this number of last tokens only (0: all), or of these positions.
            cache: the cache of an earlier call, whose tokens `input_ids` follow; updated in place.
            others: `num_items_in_batch` for the loss; anything else that changes results is refused.

        Raises:
            ValueError: an argument is not supported.
        """
        if given := [name for name in UNSUPPORTED if isinstance(others.get(name), Tensor) or others.get(name)]:
            raise ValueError(f"{given[0]}: bearings models do not support it; leave it out")
        cache = past_key_values if cache is None else cache
        if cache is not None and not isinstance(cache, BearingsCache):
            raise ValueError(
                f"{CACHE}={type(cache).__name__}: give the {CACHE} of an earlier output of this model, or leave it out"
            )
        if cache is None and (use_cache or (use_cache is None and self._caches(attention_mask, labels))):
            cache = BearingsCache()
        if cache is None:
            hidden = self.transformer.hidden(input_ids, documents=self._documents(attention_mask))
        else:
            hidden = cache.hidden(self.transformer, input_ids, attention_mask)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.transformer.head(hidden[:, kept])
        loss = None
        if labels is not None:
            if attention_mask is not None:  # padding predicts nothing
                after_padding = nn.functional.pad(attention_mask[:, -labels.shape[1] :], (1, -1), value=1) == 0
                labels = labels.masked_fill(after_padding, -100)
            given = {key: others[key] for key in ("num_items_in_batch",) if key in others}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **given)
        out = CausalLMOutputWithPast(loss=loss, logits=logits)
        if cache is not None:
            out[CACHE] = cache
        return out.to_tuple() if return_dict is False else out

    def _caches(self, mask: Tensor | None, labels: Tensor | None) -> bool:
        """Whether a call without `use_cache` returns a cache."""
        if not self.config.use_cache or self.training or labels is not None:
            return False
        return mask is None or mask.ndim != 2 or bool(mask[:, -1].all())

    def _documents(self, mask: Tensor | None) -> Documents | None:
        """Documents of a row with padding on the left: the padding, and the tokens, whose positions begin at 0."""
        if mask is None:
            return None
        check_mask(mask)
        return None if mask[:, 0].all() else Documents.of(mask.long(), 2 * len(mask))

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> None:
        # This is called by `generate`, which would create a cache of keys and values.
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation}: bearings models have their own "
                "cache: leave it out"
            )
        if model_kwargs.get(CACHE) is None and generation_config.use_cache:
            model_kwargs[CACHE] = BearingsCache(generation_config.max_length)

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.transformer.register_module("embedding", value)

    def get_output_embeddings(self) -> nn.Module:
        return self.transformer.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.transformer.register_module("head", new_embeddings)

    def gradient_checkpointing_enable(self, *given: Any, **named: Any) -> None:
        self.transformer.checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.transformer.checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.transformer.checkpointing

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The constructor has drawn all weights, except on the meta device, where a checkpoint provides them.
        if self._drawn:
            return
        if isinstance(module, PositionModule):
            module.reset_parameters()
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)


def built(config: BearingsConfig) -> Transformer:
    """The model with initial weights, which depend on PyTorch's seed."""
    clock = None
    if config.clock is not None:
        zeros = np.zeros(config.vocab_size, np.int64)
        clock = Clock(zeros, zeros if config.clock["places"] else None, config.clock["columns"])
    transformer = Transformer(
        config.vocab_size,
        partial(class_of(config.encoding), **config.encoding_options),
        seed=torch.initial_seed() % 2**63,
        clock=lambda: clock,
        **{option: getattr(config, name) for option, name in MODEL.items()},
    )
    if transformer.medium is not None:  # its times are read from the checkpoint
        for name, times in transformer.medium.named_buffers():
            transformer.medium.register_buffer(name, times)
    if config.dropped:
        for encoding in transformer.encodings:
            if encoding.drop_after is not None:
                encoding.drop()
    return transformer

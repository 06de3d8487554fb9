"""Samples from a model with its state, so that each token is computed once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.options import Option, Seed
from ..core.words import plural
from .evaluation import evaluating, last_begin
from .options import SamplingOptions
from .transformer import Transformer

COLDEST = 1e-6  # temperature; below it logits / temperature may overflow, and the likeliest token is nearly certain


@torch.inference_mode()
def sample(
    model: Transformer,
    prompt: Tensor,
    tokens: int,
    seed: int = 0,
    forbidden: tuple[int, ...] = (),
    on_token: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> Tensor:
    """Continue `prompt [B, P]`, at least the start token; returns the continuations `[B, tokens]`.

    Args:
        tokens: number of tokens to draw.
        seed: the same seed gives the same sample on the same device.
        forbidden: ids that are never drawn, such as the start token.
        on_token: called with the number of tokens drawn.
        options: fields of `SamplingOptions`; `top_p=None` keeps all tokens.

    Raises:
        ValueError: see `SamplingOptions`; the seed is negative or not below 2**63; or the encoding has no positions for
            so many tokens.
    """
    given = SamplingOptions(**options)
    if problems := Option("seed", Seed, 0, "").problems(seed):
        raise ValueError(problems[0])
    if model.longest is not None and prompt.shape[1] + tokens > model.longest:
        raise ValueError(
            f"tokens={tokens}: with a prompt of {plural(prompt.shape[1], 'token')}, it must be at most "
            f"{model.longest - prompt.shape[1]:,}, because the encoding's longest context, {model.longest:,} tokens, "
            "includes both"
        )
    device = prompt.device
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.empty(len(prompt), tokens, dtype=torch.int64, device=device)
    never = torch.tensor(forbidden, dtype=torch.int64, device=device)
    with evaluating(model):
        state = model.new_state(len(prompt), prompt.shape[1] + tokens)
        logits = model.next_logits(prompt, state)
        for i in range(tokens):
            drawn[:, i] = draw(logits.float(), given.temperature, given.top_k, given.top_p, generator, never)
            on_token(i + 1)
            if i + 1 < tokens:
                logits = model.next_logits(drawn[:, i : i + 1], state)
    return drawn


def visible(model: Transformer, prompt: Tensor, tokens: int, length: int, period: int = 1) -> Tensor:
    """The end of `prompt [B, P]` that the model is given before it draws `tokens` more, as windows are in evaluation.

    A pass over a long prompt would take time quadratic in its length, and models are rarely good far beyond the trained
    length.

    Args:
        length: the trained length. With encodings that limit the context, prompt and `tokens` fit into it too.
        period: the domain's period; the end begins at one of its multiples.

    Raises:
        ValueError: the encoding has no positions for `tokens` and a prompt.
    """
    most = length if model.longest is None else min(length, model.longest - tokens)
    if most < 1:
        raise ValueError(
            f"tokens={tokens}: it must be below the encoding's longest context, {model.longest:,} tokens, which "
            "includes at least one before the sample"
        )
    return prompt[:, last_begin(prompt.shape[1], most, period) :]


def draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator,
    forbidden: Tensor,
) -> Tensor:
    """One token id `[B]` from `logits [B, vocabulary]`, excluding `forbidden [n]`."""
    logits = logits.index_fill(-1, forbidden, float("-inf"))
    if temperature < COLDEST:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
    if top_p is not None:
        ordered, order = logits.sort(descending=True)
        probability = ordered.softmax(-1)
        # A token is dropped if likelier tokens already reach top_p; the likeliest token always stays.
        beyond = probability.cumsum(-1) - probability >= top_p
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)

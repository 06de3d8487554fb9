"""The model `bearings` of lm-evaluation-harness, and its command line: python -m bearings.adapters.lm_eval."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

try:
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
    from lm_eval.utils import (  # pyright: ignore[reportMissingImports]
        get_rolling_token_windows,
        make_disjoint_window,
    )
except ModuleNotFoundError:
    if __name__ == "__main__":
        sys.exit("error: lm-evaluation-harness is not installed: pip install lm-eval")
    raise

from ..core.errors import UserError
from ..core.options import as_path
from ..domains.text import Text
from ..lightning_modules.likelihood import continuation_nats
from ..lightning_modules.sampling import draw
from ..session.explaining import one_line_errors
from ..session.run_choices import on_one_device
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.trust import trusting
from ..zeroshot.encoding import encoded


@dataclass(frozen=True)
class Generation:
    """How to continue a context: stop texts, number of tokens, and sampling."""

    until: tuple[str, ...]
    tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None

    @classmethod
    def of(cls, given: Mapping[str, Any], most: int) -> "Generation":
        """From the harness's keyword arguments; greedy unless they ask for sampling. `most` limits the tokens."""
        until = given.get("until") or ()
        tokens = given.get("max_gen_toks") or given.get("max_new_tokens") or given.get("max_tokens") or 256
        temperature = float(given.get("temperature", 1.0 if given.get("do_sample") else 0.0))
        if given.get("do_sample") is False:
            temperature = 0.0
        stops = (until,) if isinstance(until, str) else tuple(filter(None, until))
        return cls(stops, min(int(tokens), most), temperature, given.get("top_k"), given.get("top_p"))

    def ended(self, text: str) -> str | None:
        """`text` up to the first stop text; None if there is none in it."""
        places = [place for stop in self.until if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None


@register_model("bearings")
class Bearings(TemplateLM):
    """A trained run as a model of lm-evaluation-harness.

    Args:
        run: the run's directory; it was trained with domain=text or domain=openwebtext.
        stores: folder of the token stores; None for the run's own.
        prefix: begin each context with the token that begins documents in training.
        tokens_per_batch: maximum number of tokens per forward pass.
        device: cpu, cuda, or None for a GPU if available.
        trust: package outside this project whose classes the run's configuration may name.
        batch_size, max_batch_size: not used, because batches are limited by their tokens; the harness passes both.
        others: arguments that are refused.

    Raises:
        UserError: there is no such run, it is not of text, a file is missing or damaged, or there are `others`.
    """

    def __init__(
        self,
        run: str = "",
        stores: str | None = None,
        prefix: bool = True,
        tokens_per_batch: int = 16384,
        device: str | None = None,
        trust: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **others: Any,
    ):
        super().__init__()
        if others or not run:
            fault = f"unknown argument {min(others)}" if others else "run=DIRECTORY is missing"
            raise UserError(f"model_args: {fault}; allowed: run, stores, prefix, tokens_per_batch, trust")
        accelerators = {None: "auto", "cpu": "cpu", "cuda": "gpu", "gpu": "gpu"}
        kind = device and str(device).partition(":")[0]
        if kind not in accelerators:
            raise UserError(f"device={device}: allowed: cpu, cuda")
        directory = RunDirectory.open(as_path(run)).trained()
        config = on_one_device(directory, accelerators[kind])
        if stores:
            config["stores"] = stores
        with trusting(trust):
            session = Session.of(config)
            if not isinstance(session.domain, Text):
                raise UserError(f"run={run}: domain {session.domain.name} is not text, which the harness's tasks need")
            _, self.transformer = session.trained(directory)
        self.codec, self.prefix, self.tokens_per_batch = session.domain.codec, prefix, tokens_per_batch
        self.max_length, self.precision = session.data.length, session.settings.precision
        self._device = session.settings.device

    @property
    def eot_token_id(self) -> int:
        return self.codec.end

    @property
    def prefix_token_id(self) -> int:
        return self.codec.start

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text, after the token that begins documents if `add_special_tokens`, by default `prefix`."""
        begin = [self.codec.start] if (self.prefix if add_special_tokens is None else add_special_tokens) else []
        return [*begin, *(encoded([string], self.codec)[0].tolist() if string else ())]

    def _loglikelihood_tokens(self, requests: Sequence[tuple], **_: Any) -> list[tuple[float, bool]]:
        pairs = [(np.array(context), np.array(then)) for _, context, then in requests]
        if (longest := max((len(then) for _, then in pairs), default=0)) > self.max_length:
            limit = f"the run's data.length={self.max_length:,}"
            raise UserError(f"a continuation has {longest:,} tokens, more than {limit}: leave out its task")
        nats, greedy = continuation_nats(
            self.transformer, pairs, self.max_length, self.precision, self.tokens_per_batch
        )
        found = [*zip((-nats).tolist(), greedy.tolist(), strict=True)]
        for request, answer in zip(requests, found, strict=True):
            if request[0] is not None:  # None for windows of a longer text
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of complete texts, in disjoint windows of targets; the first begins as documents do."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for number, (likelihood, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += likelihood
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to a stop text, end of text, or the number of tokens. Contexts are cut from the left."""
        groups: dict[tuple[int, Generation], list[tuple[int, list[int]]]] = {}
        for number, request in enumerate(requests):
            context, given = request.args
            how = Generation.of(given, self.max_length - 1)
            ids = (self.tok_encode(context) or [self.codec.start])[-(self.max_length - how.tokens) :]
            groups.setdefault((len(ids), how), []).append((number, ids))
        found = [""] * len(requests)
        generator = torch.Generator(self._device).manual_seed(torch.initial_seed())
        for (length, how), rows in groups.items():
            at_once = max(1, self.tokens_per_batch // (length + how.tokens))
            for begin in range(0, len(rows), at_once):
                numbers, contexts = zip(*rows[begin : begin + at_once], strict=True)
                for number, text in zip(numbers, self._continued(contexts, how, generator), strict=True):
                    found[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return found

    def _continued(self, contexts: Sequence[list[int]], how: Generation, generator: torch.Generator) -> list[str]:
        """Continuations of contexts of equal length."""
        drawn: list[list[int]] = [[] for _ in contexts]
        texts: list[str | None] = [None] * len(contexts)
        for ids in self._drawn(torch.tensor(contexts, device=self._device), how, generator):
            for row, token in enumerate(ids):
                if texts[row] is None:
                    drawn[row].append(token)
                    text = self.codec.decode(drawn[row])
                    texts[row] = text if token == self.codec.end else how.ended(text)
            if None not in texts:
                break
        return [self.codec.decode(ids) if text is None else text for ids, text in zip(drawn, texts, strict=True)]

    def _drawn(self, tokens: torch.Tensor, how: Generation, generator: torch.Generator) -> Iterator[list[int]]:
        """Draw tokens step by step; yields one token id per row."""
        state = self.transformer.new_state(len(tokens), tokens.shape[1] + how.tokens)
        never = torch.tensor([], dtype=torch.int64, device=self._device)
        for _ in range(how.tokens):
            with torch.inference_mode():
                logits = self.transformer.next_logits(tokens, state)
                ids = draw(logits.float(), how.temperature, how.top_k, how.top_p, generator, never)
            yield ids.tolist()
            tokens = ids[:, None]


def main() -> None:
    """lm_eval's command line, in which the model `bearings` is registered."""
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    with one_line_errors():
        cli_evaluate()


if __name__ == "__main__":
    main()

"""Measures training speed of this project's models and other implementations of the same size. Writes a CSV.

    python -m bearings.benchmarks.training --out training.csv [--nanogpt PATH/TO/model.py] [--vocabulary 50257 50304]
    python -m bearings.benchmarks.training --size 124M 350M 1.3B --encodings rope pope path --out training_sizes.csv

The default size is GPT-2's smallest. Contenders are compiled, except this project's with `--uncompiled`. They run in
one process, in turns with the first of their size (RoPE by default), and take the same steps: random tokens, bf16
autocast, gradients clipped at 1, fused AdamW. Steps are timed when launched by the CPU, when replayed as one CUDA
graph, and, for this project's models, with deterministic kernels (trainer.deterministic). Other implementations get the
first vocabulary rounded up to a multiple of 64, as in nanoGPT: at GPT-2's 50,257 their matrix products are much
slower. Packages that are not installed are skipped, and so are modes that a contender does not support, and contenders
that run out of memory.
"""

import argparse
import gc
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from ..lightning_modules.blocks import SwiGLU
from ..lightning_modules.cost import peak_flops
from ..lightning_modules.graphs import WARM_UP, CaptureError, StepGraphs
from ..lightning_modules.language_model import LanguageModel
from ..session.configuration import resolve
from ..session.models import build_transformer
from ..session.overrides import choices_of
from ..session.settings import CONFIGS
from .record import parser_of, source, write_rows
from .sweep import allow_recompiling, parsed_on_gpu

WAYS = ("launched", "graph", "deterministic")
ENCODINGS = ["rope", *(name for name in choices_of("encoding") if name not in ("rope", "pattern"))]
SLOW = 2.0  # seconds; a contender whose turns take longer has only one turn


@dataclass(frozen=True)
class Size:
    """Size of a model and of a step: `batch` rows of `length` tokens. The defaults are GPT-2's smallest."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    length: int = 1024
    batch: int = 32

    @property
    def name(self) -> str:
        """The key in SIZES of a model with these layers, width and heads; empty if there is none."""
        shape = self.layers, self.width, self.heads
        return next((name for name, each in SIZES.items() if shape == (each.layers, each.width, each.heads)), "")


# GPT-2's smallest and medium, and Pythia's 1.4B with its vocabulary (arXiv 2304.01373, 16 heads of 128).
SIZES = {
    "124M": Size(),
    "350M": Size(layers=24, width=1024, heads=16, batch=16),
    "1.3B": Size(layers=24, width=2048, heads=16, batch=8),
}


@dataclass
class Contender:
    """A model, a function of inputs and targets `[B, T]` to mean nats per token, and FLOPs per token of a step.

    Attributes:
        compiled: whether torch.compile is used.
    """

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    flops_per_token: float
    compiled: bool = True


def ours(name: str, size: Size, compiled: bool = True) -> Contender:
    """This project's Transformer with an encoding and settings, such as "rope model.residual_in_fp32=false".

    By default, blocks are compiled if long runs compile them.
    """
    encoding, *settings = name.split()
    sizes = [f"model.{name}={getattr(size, name)}" for name in ("layers", "width", "heads")]
    sizes.append(f"data.length={size.length}")  # some encodings have a maximum length
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = resolve(
            compose("config", overrides=[f"encoding={encoding}", "model=base", "model.dropout=0.0", *sizes, *settings])
        )
    model = LanguageModel(build_transformer(config, size.vocabulary), seed=0, steps=1)
    device = torch.device("cuda")
    plans = [each.plan(device, torch.bfloat16, size.length) for each in model.transformer.kinds]
    compiled = compiled and all(plan.compiles for plan in plans)
    if compiled:
        model.transformer.compile_parts(all(plan.by_kernel for plan in plans))
    allow_recompiling()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return model.nats({"inputs": inputs, "targets": targets}) / targets.numel()

    return Contender(model, loss, model.transformer.training_flops_per_token(size.length), compiled)


def from_transformers(name: str, size: Size) -> Contender:
    """GPT-2 or Llama of the same size from Hugging Face transformers, with SDPA."""
    import transformers  # pyright: ignore[reportMissingImports]

    shared = {"vocab_size": size.vocabulary, "attn_implementation": "sdpa", "use_cache": False}
    if name == "gpt2":
        none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(
            n_positions=size.length, n_layer=size.layers, n_embd=size.width, n_head=size.heads, **none, **shared
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        hidden = SwiGLU.usual_hidden(size.width)
        sizes = {"hidden_size": size.width, "intermediate_size": hidden, "num_hidden_layers": size.layers}
        sizes |= {
            "num_attention_heads": size.heads,
            "max_position_embeddings": size.length,
            "tie_word_embeddings": True,
        }
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **shared))
    compiled = torch.compile(model)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(compiled(inputs).logits.float().flatten(0, 1), targets.flatten())

    return Contender(model, loss, plain_flops(model, size))


def nanogpt(path: Path, size: Size) -> Contender:
    """The model of nanoGPT, from its model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file; give the path of nanoGPT's model.py")
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    sizes = {"n_layer": size.layers, "n_head": size.heads, "n_embd": size.width}
    sizes |= {"block_size": size.length, "vocab_size": size.vocabulary}
    model = source.GPT(source.GPTConfig(**sizes, dropout=0.0, bias=False))
    compiled = torch.compile(model)
    return Contender(model, lambda inputs, targets: compiled(inputs, targets)[1], plain_flops(model, size))


def plain_flops(model: nn.Module, size: Size) -> float:
    """FLOPs per token of a step with plain causal attention: three times the count of `Transformer.flops_per_token`."""
    weights = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "wpe" not in name)
    return 3 * (2.0 * weights + size.layers * 2.0 * size.width * (size.length + 1))


class Running:
    """A contender with its optimiser on the device."""

    def __init__(self, contender: Contender, device: torch.device, size: Size):
        self.contender, self.device, self.size = contender, device, size
        contender.module.to(device).train()
        parameters = contender.module.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.graphs = StepGraphs(self.step, size.length)

    def step(self, batch: dict[str, Tensor]) -> tuple[Tensor]:
        """Run one step and return the loss."""
        for group in self.optimizer.param_groups:
            group["capturable"] = torch.cuda.is_current_stream_capturing()
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.contender.loss(batch["inputs"], batch["targets"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.contender.module.parameters(), 1.0)
        self.optimizer.step()
        return (loss.detach(),)

    def steps(self, count: int, way: str = "launched") -> float:
        """Seconds per step, over `count` steps in one of the modes WAYS."""
        tokens = torch.randint(self.size.vocabulary, (count, self.size.batch, self.size.length + 1), device=self.device)
        torch.use_deterministic_algorithms(way == "deterministic")
        step = self.graphs if way == "graph" else self.step
        torch.cuda.synchronize()
        began = time.perf_counter()
        for row in tokens:
            step({"inputs": row[:, :-1].contiguous(), "targets": row[:, 1:].contiguous()})
        torch.cuda.synchronize()
        torch.use_deterministic_algorithms(False)
        return (time.perf_counter() - began) / count

    def warm_up(self, ways: list[str]) -> list[str]:
        """Compile and capture. Returns the supported modes out of `ways`."""
        gone = []
        for way in ways:
            try:
                self.steps(WARM_UP + 2, way)
            except CaptureError as error:
                print(f"not replayed as a CUDA graph: {error}")
            else:
                gone.append(way)
        return gone

    def peak_bytes(self) -> int:
        """Peak memory of a step, without memory allocated before this contender."""
        torch.cuda.reset_peak_memory_stats()
        others = torch.cuda.memory_allocated() - self.own()
        self.steps(2)
        return torch.cuda.max_memory_allocated() - others

    def own(self) -> int:
        """Bytes of parameters, gradients and optimiser moments."""
        held = [t for p in self.contender.module.parameters() for t in (p, p.grad) if t is not None]
        held += [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return sum(t.untyped_storage().nbytes() for t in held if t.device == self.device)


class Timed:
    """A contender that is timed in turns with the first one. After `free` only its figures are left."""

    def __init__(self, key: tuple[str, Size], running: Running, ways: list[str], peak_bytes: int):
        self.key, self.running, self.peak_bytes = key, running, peak_bytes
        size = key[1]
        self.seconds: dict[str, list[float]] = {way: [] for way in ways}
        self.ratios: dict[str, list[float]] = {way: [] for way in ways}
        self.parameters = sum(p.numel() for p in running.contender.module.parameters())
        self.flops_per_token = running.contender.flops_per_token
        # nanoGPT's count (PaLM, arXiv 2204.02311, appendix B): with embeddings, attention as if it were not causal.
        self.flops_by_nanogpt = 6.0 * self.parameters + 12.0 * size.layers * size.width * size.length
        self.compiled = running.contender.compiled

    @classmethod
    def ready(
        cls,
        key: tuple[str, Size],
        make: Callable[[], Contender],
        arguments: argparse.Namespace,
        graphs: StepGraphs | None = None,
    ) -> "Timed":
        """Build, compile and capture a contender. Its CUDA graphs share the memory and stream of `graphs`."""
        began, (name, size) = time.perf_counter(), key
        running = Running(make(), torch.device("cuda"), size)
        running.steps(3)
        peak = running.peak_bytes()
        if graphs is not None:  # contenders never run at the same time
            running.graphs.pool, running.graphs.stream = graphs.pool, graphs.stream
        ways = [way for way in arguments.ways if way != "deterministic" or name in arguments.encodings]
        timed = cls(key, running, running.warm_up(ways), peak)
        print(
            f"{name}, {size.name}, vocabulary {size.vocabulary}: ready after {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        return timed

    def take_turns(self, baseline: "Timed", arguments: argparse.Namespace) -> None:
        """Time this contender and `baseline` alternately."""
        for way, found in self.seconds.items():
            for _ in range(arguments.rounds if self is not baseline else 1):
                found.append(self.running.steps(arguments.steps, way))
                if self is not baseline and way in baseline.seconds:
                    baseline.seconds[way].append(baseline.running.steps(arguments.steps, way))
                    self.ratios[way].append(baseline.seconds[way][-1] / found[-1])
                if found[-1] * arguments.steps > SLOW:
                    break

    def free(self) -> None:
        """Free the model, its optimiser and its graphs."""
        del self.running
        gc.collect()
        torch.cuda.empty_cache()

    def rows(self) -> list[dict]:
        """A CSV row for each mode; the first has the peak memory of launched steps.

        `ratio`: tokens/s relative to the first contender, median of adjacent turns.
        """
        (name, size), peak, rows = self.key, peak_flops(torch.device("cuda")), []
        for way, seconds in self.seconds.items():
            speeds = [size.batch * size.length / s for s in seconds]
            speed = statistics.median(speeds)
            rows.append(
                {
                    "contender": name,
                    "steps": way,
                    "tokens_per_s": round(speed),
                    "slowest": round(min(speeds)),
                    "fastest": round(max(speeds)),
                    "ratio": round(statistics.median(self.ratios[way] or [1.0]), 4),
                    "mfu": peak and round(speed * self.flops_per_token / peak, 4),
                    "mfu_nanogpt": peak and round(speed * self.flops_by_nanogpt / peak, 4),
                    "peak_mib": "" if rows else round(self.peak_bytes / 2**20),
                    "parameters": self.parameters,
                    "compiled": self.compiled,
                    "size": size.name,
                    **asdict(size),
                }
            )
        return rows


def sizes_of(arguments: argparse.Namespace) -> list[Size]:
    """The sizes of SIZES by name, with the fields that the command line gives."""
    names = (field.name for field in fields(Size) if field.name != "vocabulary")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return [replace(SIZES[name], **given) for name in arguments.size]


def makers_of(size: Size, arguments: argparse.Namespace) -> dict[tuple[str, Size], Callable[[], Contender]]:
    """Functions that build the contenders of a size, by the key of `Timed`; the first is the baseline."""
    sizes = [replace(size, vocabulary=vocabulary) for vocabulary in arguments.vocabulary]
    padded = replace(size, vocabulary=-(-arguments.vocabulary[0] // 64) * 64)
    pairs = [(name, each) for each in sizes for name in arguments.encodings]
    makers = {pair: partial(ours, *pair, not arguments.uncompiled) for pair in pairs}
    if importlib.util.find_spec("transformers"):
        makers |= {(name, padded): partial(from_transformers, name, padded) for name in arguments.peers}
    if arguments.nanogpt:
        makers["nanogpt", padded] = partial(nanogpt, arguments.nanogpt, padded)
    return makers


def measure(
    makers: dict[tuple[str, Size], Callable[[], Contender]], arguments: argparse.Namespace
) -> Iterator[list[dict]]:
    """All rows so far of one size, after each contender; the first takes turns with all others."""
    times: list[Timed] = []
    for key, make in makers.items():
        try:
            timed = Timed.ready(key, make, arguments, times[0].running.graphs if times else None)
        except torch.OutOfMemoryError as error:
            print(f"{key[0]}, {key[1].name}: left out, {str(error).splitlines()[0]}", flush=True)
            if not times:
                return  # nothing to take turns with
            continue
        times.append(timed)
        timed.take_turns(times[0], arguments)
        if timed is not times[0]:
            timed.free()
        yield [row for each in times for row in each.rows()]
    times[0].free()


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--encodings", nargs="*", default=ENCODINGS, help="names, or a name and settings in quotation marks"
    )
    parser.add_argument("--peers", nargs="*", default=["gpt2", "llama"], choices=["gpt2", "llama"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's model.py")
    parser.add_argument("--size", nargs="+", default=["124M"], choices=SIZES, help="published sizes; default: 124M")
    for field in fields(Size):
        if field.name == "vocabulary":
            parser.add_argument("--vocabulary", type=int, nargs="+", default=[field.default])
        else:
            parser.add_argument(f"--{field.name}", type=int, help="instead of that of --size")
    parser.add_argument("--uncompiled", action="store_true", help="do not compile this project's models")
    parser.add_argument("--rounds", type=int, default=7, help="turns per contender")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn")
    return parsed_on_gpu(parser, given)


def main() -> None:
    """Time the contenders of each size one after the other, in turns with the first, and write their rows."""
    arguments = parsed()
    torch.set_float32_matmul_precision("high")
    # Same settings as in `TrainerSettings.determinism`; other modes are not affected.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    made_by = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    made_by |= {"python": platform.python_version(), "commit": source(arguments.commit)}
    rows: list[dict] = []
    for size in sizes_of(arguments):
        of_size: list[dict] = []
        for found in measure(makers_of(size, arguments), arguments):
            of_size = [row | made_by for row in found]
            write_rows(arguments.out, rows + of_size)
        rows += of_size
    for row in rows:
        what = f"{row['contender']:10} {row['size']:5} {row['vocabulary']:>6} {row['steps']:14}"
        mfu = f"MFU {row['mfu']} ({row['mfu_nanogpt']} as nanoGPT counts)"
        print(f"{what} {row['tokens_per_s']:>9,} tokens/s  {row['ratio']}  {mfu}  {row['peak_mib']} MiB")


if __name__ == "__main__":
    main()

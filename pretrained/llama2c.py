"""Checkpoints and tokenizers of llama2.c, version 0: 7 integers and float32 weights; and scored pieces of text."""

import math
import struct
from pathlib import Path

import numpy as np

from .checkpoint import LAYER, Checkpoint
from .vocabulary import SPACE, Vocabulary, scored_pieces

HEADER = struct.Struct("<7i")  # width, MLP, layers, heads, key heads, vocabulary (negative: untied), positions
BASE, EPSILON = 10000.0, 1e-5  # constants of run.c
NAMES = {**{role: f"layers.{{}}.{role}" for role in LAYER}, "embedding": "embedding", "norm": "norm", "head": "head"}
BOS = 1  # delimits documents; the models were not trained to predict the end token 2
FEWEST = 3 + 256  # unknown, start, end, and one token per byte


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError if the file is not of this format, or is truncated."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise ValueError(f"it has only {size:,} bytes")
    width, hidden, layers, heads, kv_heads, signed, positions = HEADER.unpack(header)
    vocabulary = abs(signed)
    least = min(width, hidden, layers, heads, kv_heads, vocabulary, positions)
    if least < 1 or width % (2 * heads) or heads % kv_heads:
        raise ValueError(f"its sizes {[*HEADER.unpack(header)]} are not those of a model")
    head_dim, inner = width // heads, width // heads * kv_heads
    square, narrow, mlp = (layers, width, width), (layers, inner, width), (layers, hidden, width)
    norm, down = (layers, width), (layers, width, hidden)
    stacks = {  # in the order of the file; those of a layer's weights begin with the number of layers
        **{"embedding": (vocabulary, width), "attention_norm": norm, "query": square, "key": narrow, "value": narrow},
        **{"output": square, "mlp_norm": norm, "gate": mlp, "down": down, "up": mlp, "norm": (width,)},
    }
    angles = positions * head_dim  # tables of cosines and sines, which the program does not read
    needed = 4 * (sum(map(math.prod, stacks.values())) + angles + (math.prod((vocabulary, width)) if signed < 0 else 0))
    if size != HEADER.size + needed:
        raise ValueError(f"it has {size:,} bytes, but a model of the sizes in its header {HEADER.size + needed:,}")
    numbers = np.memmap(path, np.dtype("<f4"), "r", offset=HEADER.size)
    found, at = {}, 0
    for role, shape in stacks.items():
        stack = numbers[at : at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
        weights = stack if role in LAYER else [stack]
        found |= {NAMES[role].format(layer): weight for layer, weight in enumerate(weights)}
    if signed < 0:
        found["head"] = numbers[at + angles :].reshape(vocabulary, width)
    sizes = {
        **{"width": width, "layers": layers, "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads},
        **{"mlp": "swiglu", "mlp_hidden": hidden, "tie_embeddings": signed > 0, "norm_epsilon": EPSILON},
    }
    shapes = {name: weight.shape for name, weight in found.items()}
    given = path, [path], vocabulary, sizes, {"base": BASE}, True, NAMES, shapes, {}
    return Checkpoint(*given, lambda name: np.array(found[name]))


def tokenizer_of(path: Path, vocabulary: int) -> Path:
    """The tokenizer next to a checkpoint: tok512.bin for 512 tokens, tokenizer.bin for Llama 2's 32,000."""
    named = path.with_name(f"tok{vocabulary}.bin")
    return named if named.exists() else path.with_name("tokenizer.bin")


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises ValueError if the file is not of this format, or is truncated."""
    raw = path.read_bytes()
    pieces, scores, at = [], [], 4
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        at += 8 + length
        if length < 0 or at > len(raw):
            raise ValueError("it ends within a piece")
        pieces.append(raw[at - length : at].decode())
        scores.append(score)
    if len(pieces) < FEWEST:
        raise ValueError(f"it has {len(pieces)} pieces; a tokenizer of llama2.c has at least {FEWEST}")
    spelt = ["<unk>", "<s>", "</s>", *(piece.replace(" ", SPACE) for piece in pieces[3:])]
    return scored_pieces(spelt, scores, {0, 1, 2}, BOS, BOS, unknown=0)

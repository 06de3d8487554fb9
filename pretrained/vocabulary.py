"""Tokenizers of pretrained models, as the content of a `tokenizer.json` that the package `tokenizers` reads."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

END_OF_TEXT = "<|endoftext|>"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "▁"  # how SentencePiece spells a space
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}
SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
        {**GPT2, "use_regex": False},
    ],
}
# How text is split before merging, by GGUF's name `tokenizer.ggml.pre`.
SPLITTING = {"gpt-2": GPT2, "default": GPT2, "smollm": DIGITS, "llama-bpe": SPLIT, "llama3": SPLIT, "llama-v3": SPLIT}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer.

    Attributes:
        spec: content of a tokenizer.json. Its post-processor adds the tokens that begin and end a document.
        start, end: ids of these tokens.
        size: number of ids.
    """

    spec: Mapping[str, Any]
    start: int
    end: int
    size: int


def with_ends(spec: Mapping[str, Any], names: Mapping[int, str], start: int, end: int, size: int) -> Vocabulary:
    """A vocabulary whose post-processor adds `start` and `end`."""
    for token in (start, end):
        if token not in names:
            raise ValueError(f"its token {token} that begins or ends a document does not exist")
    template = [{"SpecialToken": {"id": names[start], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template.append({"SpecialToken": {"id": names[end], "type_id": 0}})
    tokens = {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in (start, end)}
    pair = [*template, {"Sequence": {"id": "B", "type_id": 1}}]
    processor = {"type": "TemplateProcessing", "single": template, "pair": pair, "special_tokens": tokens}
    return Vocabulary({**spec, "post_processor": processor}, start, end, size)


def scored_pieces(
    pieces: Sequence[str], scores: Sequence[float], special: Collection[int], start: int, end: int, unknown: int,
    prefix: bool = True,
) -> Vocabulary:  # fmt: skip
    """SentencePiece's BPE, which repeatedly merges the two neighbours whose concatenation is the best-scored piece.

    Args:
        pieces: spelt as in SentencePiece, with `<0x0A>` for single bytes.
        special: ids that never occur in text.
        prefix: whether a space is added before the text.
    """
    ids = {piece: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise ValueError("two of its pieces are equal")
    if missing := 256 - sum(BYTE.fullmatch(piece) is not None for piece in pieces):
        raise ValueError(f"{missing} of the 256 bytes have no token")
    ranked = sorted((i for i in ids.values() if i not in special and len(pieces[i]) > 1), key=lambda i: -scores[i])
    merges = []
    for piece in (pieces[i] for i in ranked if not BYTE.fullmatch(pieces[i])):
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += sorted(
            (pair for pair in halves if pair[0] in ids and pair[1] in ids),
            key=lambda pair: (ids[pair[0]], ids[pair[1]]),
        )
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}]
    decoders += [{"type": "Fuse"}, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else [])]
    spec = {
        **_spec(ids, merges, special),
        "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    spec["model"] |= {"unk_token": pieces[unknown], "fuse_unk": True, "byte_fallback": True}
    return with_ends(spec, dict(enumerate(pieces)), start, end, len(pieces))


def byte_level(
    pieces: Sequence[str],
    merges: Sequence[Sequence[str]],
    splitting: str,
    special: Collection[int],
    start: int,
    end: int,
) -> Vocabulary:
    """Byte-level BPE as in GPT-2, with text split as GGUF's `splitting` says.

    Raises:
        ValueError: `splitting` is unknown.
    """
    if splitting not in SPLITTING:
        raise ValueError(
            f"its pre-tokenizer {str(splitting)[:40]} is not supported: set domain.tokenizer_path to the model's "
            "tokenizer.json"
        )
    ids = {piece: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise ValueError("two of its tokens are equal")
    spec = {
        **_spec(ids, merges, special),
        "normalizer": None,
        "pre_tokenizer": SPLITTING[splitting],
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }
    spec["model"]["ignore_merges"] = SPLITTING[splitting] is SPLIT
    if END_OF_TEXT in ids:
        start = end = ids[END_OF_TEXT]
    return with_ends(spec, dict(enumerate(pieces)), start, end, len(pieces))


def of_tokenizer_json(spec: Any, ends: Sequence[Any], rows: int = 0) -> Vocabulary:
    """A vocabulary from the content of a tokenizer.json.

    `<|endoftext|>` separates documents if it exists: that is how base models with such a token were trained. Otherwise
    documents begin and end with the tokens that the post-processor adds, or with `ends`.

    Args:
        ends: name or id of the tokens that begin and end a text, from the model's other files; None if unknown.
        rows: number of rows of the model's embedding, if known. Rows without a token get an unused one.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: it is not a BPE, or no token ends a document.
    """
    if spec["model"].get("type", "BPE") != "BPE":
        raise ValueError(f"its model is {str(spec['model']['type'])[:40]}, but only BPE is supported")
    ids = {**spec["model"]["vocab"], **{token["content"]: token["id"] for token in spec.get("added_tokens", [])}}
    names = {i: name for name, i in ids.items()}
    if not all(type(i) is int and 0 <= i < 1 << 24 for i in names):
        raise ValueError("its token ids are not integers from 0 to 2^24 - 1")
    size = max(names) + 1
    if size < rows <= 1 << 24:
        unused = {f"<|unused_{i}|>": i for i in range(size, rows)}
        names, size = {**names, **{i: name for name, i in unused.items()}}, rows
        spec = {**spec, "added_tokens": [*spec.get("added_tokens", []), *(_special(*each) for each in unused.items())]}
    if END_OF_TEXT in ids:
        return with_ends(spec, names, ids[END_OF_TEXT], ids[END_OF_TEXT], size)
    outer = (spec.get("post_processor") or {}).get("single") or []
    outer = [(part.get("SpecialToken") or {}).get("id") for part in outer]  # None for the text
    around = [outer[0] if outer else None, outer[-1] if outer else None]
    given = [ids.get(each) if isinstance(each, str) else each for each in ends]
    start, end = (given[i] if around[i] is None else ids.get(around[i]) for i in (0, 1))
    start, end = end if start is None else start, start if end is None else end
    if start is None or end is None:
        raise ValueError("it names no token that begins or ends a text")
    return with_ends(spec, names, start, end, size)


def _spec(ids: Mapping[str, int], merges: Sequence[Sequence[str]], special: Collection[int]) -> dict[str, Any]:
    names = {i: name for name, i in ids.items()}
    model = {
        **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None},
        **{"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
        **{"vocab": dict(ids), "merges": [list(pair) for pair in merges]},
    }
    added = [_special(names[i], i) for i in sorted(special)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "model": model}


def _special(name: str, token: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": True}

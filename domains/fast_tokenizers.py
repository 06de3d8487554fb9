"""Tokenizers of the package `tokenizers` that give the ids of a domain, for models that are used without bearings."""

from collections.abc import Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

START = "<s>"


def started(tokenizer: Tokenizer, token: str, start: int) -> Tokenizer:
    """`tokenizer`, which now begins every text with the special `token` of id `start`.

    Raises:
        ValueError: the token gets another id, because the vocabulary has gaps.
    """
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    if (found := tokenizer.token_to_id(token)) != start:
        raise ValueError(f"{token} has the id {found}, not {start}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, start)]
    )
    return tokenizer


def by_pattern(
    vocabulary: Mapping[str, int], pattern: str, replaced: Mapping[str, str], unknown: str | None = None
) -> Tokenizer:
    """A tokenizer without spaces between tokens, which are the matches of a regular expression.

    Args:
        vocabulary: ids of the tokens, without the start token, which is 0.
        pattern: matches one token after the other.
        replaced: regular expressions, and the text that replaces their matches before the text is split.
        unknown: the token for matches that are not in `vocabulary`. Default: None, they raise an error.
    """
    words = {START: 0, **vocabulary}
    tokenizer = Tokenizer(models.WordLevel(words, unknown) if unknown else models.WordLevel(words))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(old), new) for old, new in {r"\s": "", **replaced}.items()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return started(tokenizer, START, 0)


def by_spaces(vocabulary: Mapping[str, int]) -> Tokenizer:
    """A tokenizer of words between spaces; 0 is the start token. Unknown words raise an error."""
    tokenizer = Tokenizer(models.WordLevel({START: 0, **vocabulary}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return started(tokenizer, START, 0)

"""Tokenizers of exported models give the ids of their domains."""

import pytest
from text_support import GPT2, needs_gpt2, pages

from bearings.domains.flip_flop import FlipFlop
from bearings.domains.genome import Genome
from bearings.domains.jsb import JSB
from bearings.domains.text import Text
from bearings.domains.tokenization import BPE
from bearings.domains.word_problem_a5 import WordProblemA5

DNA = "ACGTTGCANNACGTACGTACGTTRacgtnACG\n"


def same_as_file(domain, folder, text, file_text=None):
    """Whether the tokenizer gives the ids of a file with the same text, and decodes them as the domain does."""
    file = folder / f"given{'.fa' if isinstance(domain, Genome) else '.txt'}"
    file.write_text(text if file_text is None else file_text, newline="")
    ids, tokenizer = domain.encode_file(file).tolist(), domain.fast_tokenizer()
    assert tokenizer.get_vocab_size() == domain.vocabulary
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids) == domain.decode(ids)


@pytest.mark.parametrize("tokenizer", ["bytes", "train"])
def test_text(tmp_path, tokenizer):
    texts = [text.replace("<|endoftext|>", "end") for text in pages(30)]
    domain = Text(tokenizer=tokenizer, vocabulary_size=300)
    if tokenizer == "train":
        vars(domain)["codec"] = BPE.train(texts, 300)
    for text in texts[:3]:
        same_as_file(domain, tmp_path, text)


def test_letters_of_an_alphabet(tmp_path):
    same_as_file(Text(tokenizer="alphabet", alphabet="ACDE \n"), tmp_path, "CAD  E\nACE\n")


@needs_gpt2
def test_gpt2(tmp_path):
    domain = Text(tokenizer="gpt2", tokenizer_path=str(GPT2))
    same_as_file(domain, tmp_path, pages(1)[0].replace("<|endoftext|>", "end"))


@pytest.mark.parametrize("tokenizer", ["base", "kmer6"])
def test_genome(tmp_path, tokenizer):
    same_as_file(Genome(tokenizer=tokenizer), tmp_path, DNA, f">record\n{DNA}")


def test_diagnostics(tmp_path):
    same_as_file(WordProblemA5(), tmp_path, "abAB=n")
    domain = FlipFlop()
    words = " ".join(symbol for symbol in domain.symbols if symbol)
    same_as_file(domain, tmp_path, words)


def test_music_has_no_tokenizer():
    assert JSB().fast_tokenizer() is None

"""How each benchmark's records become contexts and continuations, as in lm-evaluation-harness 0.4.13.

The function for a form of a benchmark takes one record and returns its pairs, the index of the right one, and the
lengths of the choices. It raises an exception for a record of another form.
"""

import re
from collections.abc import Sequence
from typing import Any

from .questions import Pair

Prompt = tuple[tuple[Pair, ...], int, tuple[int, ...]]
BLANK = "XXXXX"  # in questions of the Children's Book Test
# What the Children's Book Test's tokenisation separated, and the text before it.
DETOKENIZED = (
    *((" '", "'"), (" \n", "\n"), ("\n ", "\n"), (" n't", "n't"), ("`` ", '"'), ("''", '"'), (" :", ":"), (" ;", ";")),
    *((" !", "!"), (" ?", "?"), (" ,", ","), (" .", ".")),
)


def lambada(record: dict) -> Prompt:
    """The last word follows the last space; it can contain a line break."""
    words = _text(record["text"]).split(" ")
    return ((" ".join(words[:-1]), f" {words[-1]}"),), 0, ()


def blimp(record: dict) -> Prompt:
    sentences = _text(record["sentence_good"]), _text(record["sentence_bad"])
    return tuple(("", f" {sentence}") for sentence in sentences), 0, ()


def hellaswag(record: dict) -> Prompt:
    context = f"{_text(record['ctx_a'])} {_text(record['ctx_b']).capitalize()}"
    endings = [_without_brackets(_text(ending)) for ending in record["endings"]]
    return _choices(_without_brackets(f"{_text(record['activity_label'])}: {context}"), endings, int(record["label"]))


def hellaswag_plain(lines: Sequence[str]) -> Prompt:
    """Six lines: context, right choice, and four endings, in which brackets are already resolved."""
    context, gold, *endings = lines
    if len(endings) != 4:
        raise ValueError(f"it has {len(endings)} endings")
    return _choices(context, endings, int(gold))


def piqa(record: dict) -> Prompt:
    solutions = [_text(record["sol1"]), _text(record["sol2"])]
    return _choices(f"Question: {_text(record['goal'])}\nAnswer:", solutions, int(record["label"]))


def piqa_query(record: dict) -> Prompt:
    return _choices(f"{_text(record['query'])}Answer:", record["choices"], record["gold"])


def arc(record: dict) -> Prompt:
    """From the columns on the Hugging Face hub."""
    choices = record["choices"]
    gold = [*choices["label"]].index(record["answerKey"])
    return _choices(f"Question: {_text(record['question'])}\nAnswer:", choices["text"], gold)


def arc_published(record: dict) -> Prompt:
    """From ARC-Easy-Test.jsonl in the archive of the Allen Institute."""
    question = record["question"]
    choices = {key: [choice[key] for choice in question["choices"]] for key in ("text", "label")}
    return arc({"question": question["stem"], "choices": choices, "answerKey": record["answerKey"]})


def arc_query(record: dict) -> Prompt:
    return _choices(f"{_text(record['query'])}\nAnswer:", record["choices"], record["gold"])


def winogrande(record: dict) -> Prompt:
    """Partial evaluation: the choices are in the context, and what follows the blank is scored after each."""
    before, blank, after = _text(record["sentence"]).partition("_")
    if not blank:
        raise ValueError("its sentence has no blank")
    contexts = [before + _text(record[key]) for key in ("option1", "option2")]
    return _contexts(contexts, after.strip(), ["1", "2"].index(record["answer"]))


def winogrande_contexts(record: dict) -> Prompt:
    return _contexts(record["context_options"], _text(record["continuation"]), record["gold"])


def copa(record: dict) -> Prompt:
    connector = {"cause": "because", "effect": "therefore"}[record["question"]]
    context = f"{_text(record['premise']).strip()[:-1]} {connector}"
    return _copa(context, [_text(record["choice1"]), _text(record["choice2"])], record["label"])


def copa_query(record: dict) -> Prompt:
    """From a query that ends in a comma and the connector."""
    premise, comma, connector = _text(record["query"]).rpartition(", ")
    if not comma or connector not in ("because", "therefore"):
        raise ValueError("its query does not end in `, because` or `, therefore`")
    return _copa(f"{premise} {connector}", record["choices"], record["gold"])


def cbt(lines: Sequence[str]) -> Prompt:
    """20 numbered sentences, and a question with tab-separated answer and choices.

    The ranking is that of the whole text with each choice in the blank (Hill et al., 2016, section 4.4). The text
    before the blank is the same for all choices, so only the choice and the text after it are scored.
    """
    sentences = [line.partition(" ")[2].strip() for line in lines[:-1]]
    query, answer, *_, options = lines[-1].partition(" ")[2].split("\t")
    choices = options.strip().split("|")
    text = f"Passage: {' '.join(sentences)}\nQuestion: {query.strip()}"
    for separated, joined in DETOKENIZED:
        text = text.replace(separated, joined)
    if text.count(BLANK) != 1:
        raise ValueError(f"it has {text.count(BLANK)} blanks")
    before, after = text.split(BLANK)
    pairs = tuple((before, choice + after) for choice in choices)
    return pairs, choices.index(answer.strip()), ()


def _choices(context: str, choices: Sequence[str], gold: int) -> Prompt:
    pairs = tuple((context, f" {_text(choice)}") for choice in choices)
    return pairs, gold, tuple(map(len, choices))


def _contexts(contexts: Sequence[str], continuation: str, gold: int) -> Prompt:
    return tuple((_text(context), f" {continuation}") for context in contexts), gold, ()


def _copa(context: str, choices: Sequence[str], gold: int) -> Prompt:
    """Two spaces precede each choice: the harness's choices begin with one and its delimiter adds another."""
    return tuple((context, f"  {choice[0].lower()}{choice[1:]}") for choice in map(_text, choices)), gold, ()


def _without_brackets(text: str) -> str:
    """Remove `[title]` and similar artefacts of WikiHow."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it has {type(value).__name__} where text is expected")
    return value

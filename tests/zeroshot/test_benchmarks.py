"""Zero-shot benchmarks: contexts and continuations as in lm-evaluation-harness, from every form of a file."""

import bz2
import json
import lzma

import numpy as np
import pytest
from conftest import DATA
from zero_shot_support import RECORDS, benchmark_folder, lines  # noqa: F401 (a fixture)

from bearings.core.errors import UserError
from bearings.domains.tokenization import Bytes
from bearings.zeroshot.benchmarks import BENCHMARKS
from bearings.zeroshot.encoding import encode_pairs
from bearings.zeroshot.questions import Question, Questions
from bearings.zeroshot.results import items_of, scores_of

EVALUATION = DATA / "evaluation"
COUNTS = {"lambada": 5153, "hellaswag": 10042, "piqa": 1838, "arc_easy": 2376, "winogrande": 1267, "copa": 100}


def questions(name, folder):
    benchmark = BENCHMARKS[name]
    return benchmark.read(*benchmark.find(folder)).items


def test_contexts_and_continuations_are_those_of_the_harness(benchmark_files):
    def pairs(name):
        return [each.pairs for each in questions(name, benchmark_files)]

    assert pairs("lambada")[0] == (("The sea was calm. He looked at the", " sea"),)
    assert pairs("lambada")[1] == (("“Wait,” she said, and gave him the", " naïve\nanswer"),)
    assert pairs("blimp")[0] == (("", " Who sees the sea?"), ("", " Who the sea sees?"))
    assert pairs("hellaswag")[0][0] == ("Cooking: A man is in a kitchen. He in paris", " cuts. an onion.")
    assert pairs("hellaswag")[1][0] == ("Roofs: How to begin. Buy nails. At a shop.", " Go home.")
    assert pairs("piqa")[0][1] == ("Question: dresser\nAnswer:", " the sea")
    assert pairs("arc_easy")[1][2] == ("Question: Why?\nAnswer:", " the")
    assert pairs("winogrande")[0] == tuple((f"Ann beat Eve because {name}", " was good.") for name in ("Ann", "Eve"))
    assert pairs("winogrande")[1][0] == ("The sea fits the", " 's cup.")
    assert pairs("copa")[0][0] == ("The man left because", "  he was ill.")
    assert pairs("copa")[1][1] == ("It fell therefore", "  the sea")
    context, continuation = pairs("cbt_cn")[0][1]
    assert context == "Passage: " + " ".join(['The dog saw "the sea".'] * 20) + "\nQuestion: The "
    assert continuation == "dog doesn't, see."


def test_right_answers_and_lengths(benchmark_files):
    golds = {name: [each.gold for each in questions(name, benchmark_files)] for name in BENCHMARKS if name != "cbt_ne"}
    assert golds == {
        **{"lambada": [0, 0, 0], "blimp": [0, 0, 0], "hellaswag": [2, 1], "piqa": [0, 1], "arc_easy": [1, 2]},
        **{"winogrande": [0, 1], "copa": [1, 0], "cbt_cn": [1, 1]},
    }
    assert questions("arc_easy", benchmark_files)[0].lengths == (5, 7, 3, 5)
    assert [each.group for each in questions("blimp", benchmark_files)] == ["adjunct_island"] * 2 + ["passive_1"]


def test_other_forms_give_the_same_questions(benchmark_files, tmp_path):
    def queries(records):
        return [{"query": query, "choices": choices, "gold": gold} for query, choices, gold in records]

    arc = [(f"Question: {e['question']}", e["choices"]["text"]) for e in RECORDS["arc"]]
    piqa = [(f"Question: {e['goal']}\n", [e["sol1"], e["sol2"]], e["label"]) for e in RECORDS["piqa"]]
    copa = [
        ("The man left, because", ["he was ill.", "the sea."], 1),
        ("It fell, therefore", ["it broke.", "the sea"], 0),
    ]
    contexts = [each.pairs for each in questions("winogrande", benchmark_files)]
    winogrande = [
        {"context_options": [first[0], second[0]], "continuation": first[1].strip(), "gold": gold}
        for (first, second), gold in zip(contexts, (0, 1), strict=True)
    ]
    plain = [
        [e.pairs[0][0], e.gold, *(then[1:] for _, then in e.pairs)] for e in questions("hellaswag", benchmark_files)
    ]
    (tmp_path / "arc_easy.jsonl").write_text(lines(queries((*e, g) for e, g in zip(arc, (1, 2), strict=True))))
    (tmp_path / "piqa.jsonl").write_text(lines(queries(piqa)))
    (tmp_path / "copa.jsonl").write_text(lines(queries(copa)))
    (tmp_path / "winogrande.jsonl").write_text(lines(winogrande))
    text = "".join(f"{line}\n" for each in plain for line in each)
    (tmp_path / "hellaswag_val_full.txt.bz2").write_bytes(bz2.compress(text.encode()))
    for name in ("arc_easy", "piqa", "copa", "winogrande", "hellaswag"):
        assert questions(name, tmp_path) == questions(name, benchmark_files), name


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("lambada", "lambada_test.jsonl", '{"text": "a b"}\n{"text"', "record 2, is damaged"),
        ("lambada", "lambada_test.jsonl", '{"text": 3}\n', "it has int where text is expected"),
        ("lambada", "lambada_test.jsonl", '{"text": "a \\ud800"}\n', "record 1, is damaged"),
        ("lambada", "lambada_test.jsonl", "", "it contains no questions"),
        ("lambada", "lambada_test.jsonl.gz", "no gzip", "is damaged"),
        ("blimp", "BLiMP.zip", "no zip", "is damaged"),
        ("piqa", "piqa.jsonl", json.dumps({"query": "a", "choices": ["b"], "gold": 1}), "its right answer is 1"),
        ("piqa", "piqa.jsonl", json.dumps({"query": "a", "choices": ["b"], "gold": 0}), "question 1 has a single"),
        ("copa", "copa.jsonl", json.dumps({"query": "a", "choices": ["b"], "gold": 0}), "does not end in"),
        ("hellaswag", "hellaswag_val_full.txt", "a\n1\nb\n", "it has 1 endings"),
        ("cbt_cn", "cbtest_CN_test_2500ex.txt", "1 a\n21 b\tc\t\tc|d\n", "it has 0 blanks"),
    ],
)
def test_a_damaged_file_gives_one_line(name, file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message) as error:
        questions(name, tmp_path)
    assert file in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_xz_file_gives_one_line(tmp_path):
    (tmp_path / "lambada_test.jsonl.xz").write_bytes(lzma.compress(b'{"text": "a b"}\n')[:6] + bytes(60))
    with pytest.raises(UserError, match=r"lambada_test\.jsonl\.xz is damaged"):
        questions("lambada", tmp_path)


@pytest.mark.data(EVALUATION)
@pytest.mark.parametrize("name", COUNTS)
def test_real_files_have_all_questions(name):
    assert len(questions(name, EVALUATION)) == COUNTS[name]


def test_white_space_before_a_continuation_is_scored():
    pairs = encode_pairs([("ab ", "c"), ("", " d"), ("ab", " c")], Bytes())
    assert [[side.tolist() for side in pair] for pair in pairs] == [
        [[256, 97, 98], [32, 99]],
        [[256], [32, 100]],
        [[256, 97, 98], [32, 99]],
    ]
    assert encode_pairs([("ab", "c")], Bytes(), prefixed=False)[0][0].tolist() == [97, 98]
    assert encode_pairs([("", "c")], Bytes(), prefixed=False)[0][0].tolist() == [256]


def test_contexts_begin_as_documents_do(monkeypatch):
    tokenizer = Bytes()
    monkeypatch.setattr(tokenizer, "start", 7)  # pretrained tokenizers have different ids for start and end
    pairs = encode_pairs([("ab", "c"), ("", "d")], tokenizer)
    assert [context.tolist() for context, _ in pairs] == [[7, 97, 98], [7]]


def test_metrics():
    choices = Question("0", "a", (("x", " long one"), ("x", " s")), 0, (8, 1))
    other = Question("1", "b", choices.pairs, 1, (8, 1))
    third = Question("2", "b", choices.pairs, 1, (8, 1))
    nats = np.array([3.0, 2.0, 1.0, 4.0, 5.0, 4.5])
    items = items_of(Questions([choices, other, third]), nats, np.zeros(6, bool))
    assert items.columns["acc"].tolist() == [0, 0, 1]
    assert items.columns["acc_norm"].tolist() == [1, 0, 0]
    assert items.columns["margin"].tolist() == [-1.0, -3.0, 0.5]
    assert scores_of(items.groups, items.columns, ["acc"]) == {"acc": 0.25}  # the mean of the groups' means
    words = Questions([Question("0", "", (("a", " b"),)), Question("1", "", (("a", " c"),))])
    items = items_of(words, np.log([2.0, 8.0]), np.array([True, False]))
    assert scores_of(items.groups, items.columns, ["acc", "perplexity"]) == {"acc": 0.5, "perplexity": pytest.approx(4)}


def test_a_limit_applies_to_each_group(benchmark_files):
    benchmark = BENCHMARKS["blimp"]
    everything = benchmark.read(*benchmark.find(benchmark_files))
    assert [each.group for each in everything.limited(1).items] == ["adjunct_island", "passive_1"]
    assert everything.limited(1).source != everything.source == everything.limited(None).source

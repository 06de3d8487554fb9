"""Small benchmark files in their publishers' forms, and a tiny run of text."""

import gzip
import json
import zipfile

import pytest
from conftest import composed
from text_support import pages

from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.train import Train

RECORDS = {
    "lambada": [
        {"text": "The sea was calm. He looked at the sea"},
        {"text": "“Wait,” she said, and gave him the naïve\nanswer"},
        {"text": "1 the 2 the 3 the"},
    ],
    "hellaswag": [
        {
            "activity_label": "Cooking",
            "ctx_a": "A man is in a kitchen.",
            "ctx_b": "he in Paris",
            "endings": ["cuts [title] an onion.", "flies  away.", "is the sea.", "sings."],
            "label": 2,
        },
        {
            "activity_label": "Roofs",
            "ctx_a": "[header] How to begin [title] Buy nails. [step] At a shop.",
            "ctx_b": "",
            "endings": ["Go home.", "Öl, 1234 the the the", "a", "the sea the"],
            "label": 1,
        },
    ],
    "piqa": [
        {"goal": "dresser", "sol1": "replace the drawer", "sol2": "the sea", "label": 0},
        {"goal": "the", "sol1": "don't", "sol2": "1234 the", "label": 1},
    ],
    "arc": [
        {
            "question": "What is the sea?",
            "choices": {"text": ["water", "the the", "air", "naïve"], "label": ["A", "B", "C", "D"]},
            "answerKey": "B",
        },
        {"question": "Why?", "choices": {"text": ["1", "22", "the"], "label": ["1", "2", "3"]}, "answerKey": "3"},
    ],
    "winogrande": [
        {"sentence": "Ann beat Eve because _ was good.", "option1": "Ann", "option2": "Eve", "answer": "1"},
        {"sentence": "The sea fits _ 's cup.", "option1": "the", "option2": "Öl", "answer": "2"},
    ],
    "copa": [
        {"premise": "The man left. ", "choice1": "He was ill.", "choice2": "The sea.", "question": "cause", "label": 1},
        {"premise": "It fell.", "choice1": "It broke.", "choice2": "the sea", "question": "effect", "label": 0},
    ],
    "blimp": {
        "adjunct_island": [
            {"sentence_good": "Who sees the sea?", "sentence_bad": "Who the sea sees?"},
            {"sentence_good": "the the", "sentence_bad": "zz qq"},
        ],
        "passive_1": [{"sentence_good": "1234 the", "sentence_bad": "the 1234"}],
    },
}
CBT = "\n".join([f"{number} The dog saw `` the sea '' ." for number in range(1, 21)] + [""])
CBT += "21 The XXXXX does n't , see .\tdog\t\tcat|dog|sea\n\n"


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)


def write_benchmarks(folder):
    """Write all benchmarks in the publishers' forms, and ARC in the Allen Institute's."""
    folder.mkdir(parents=True)
    (folder / "lambada_test.jsonl").write_text(lines(RECORDS["lambada"]))
    (folder / "hellaswag_val.jsonl").write_text(lines(RECORDS["hellaswag"]))
    goals = [{key: each[key] for key in ("goal", "sol1", "sol2")} for each in RECORDS["piqa"]]
    labels = "".join(f"{each['label']}\n" for each in RECORDS["piqa"])
    names = [f"physicaliqa-train-dev/{name}" for name in ("dev.jsonl", "dev-labels.lst")]
    zipped(folder / "physicaliqa-train-dev.zip", dict(zip(names, (lines(goals), labels), strict=True)))
    zipped(folder / "winogrande_1.1.zip", {"winogrande_1.1/dev.jsonl": lines(RECORDS["winogrande"])})
    zipped(folder / "COPA.zip", {"COPA/val.jsonl": lines(RECORDS["copa"])})
    published = [
        {
            "question": {
                "stem": each["question"],
                "choices": [
                    {"text": text, "label": label}
                    for text, label in zip(each["choices"]["text"], each["choices"]["label"], strict=True)
                ],
            },
            "answerKey": each["answerKey"],
        }
        for each in RECORDS["arc"]
    ]
    (folder / "ARC-Easy-Test.jsonl").write_text(lines(published))
    blimp = {f"data/{name}.jsonl": lines(records) for name, records in RECORDS["blimp"].items()}
    zipped(folder / "BLiMP.zip", blimp | {"__MACOSX/data/._adjunct_island.jsonl": "\0"})
    (folder / "cbtest_CN_test_2500ex.txt.gz").write_bytes(gzip.compress((CBT * 2).encode()))
    return folder


def text_run(folder, *overrides, steps=6):
    """Train a tiny run on text as bytes; returns its session."""
    (folder / "text.txt").write_text("\n".join(page.replace("\r", "") for page in pages(60)))
    plain = composed(
        *("experiment=debug", "domain=text", "domain.tokenizer=bytes", f"domain.path={folder / 'text.txt'}"),
        *(f"trainer.steps={steps}", f"trainer.validate_every={steps}", f"trainer.checkpoint_every={steps}"),
        *("trainer.accelerator=cpu", "data.length=96", "data.batch_size=2", f"runs={folder / 'runs'}"),
        *(f"stores={folder / 'data'}", *overrides),
    )
    plain["names"] = {"domain": "text", "encoding": "rope", "model": "tiny"}
    session = Session.of(plain)
    Train(samples=0)(session)
    run = RunDirectory.of(session.config)
    return Session.of(RunDirectory.open(run.path).config | {"run": str(run.path)}), run


@pytest.fixture(scope="session", name="benchmark_files")
def benchmark_folder(tmp_path_factory):
    return write_benchmarks(tmp_path_factory.mktemp("zero-shot") / "files")


@pytest.fixture(scope="session", name="trained_text")
def trained_text_run(tmp_path_factory):
    return text_run(tmp_path_factory.mktemp("text"))

"""lm-evaluation-harness: the model `bearings`, and our scores equal the harness's in all digits."""

import os
import shutil

import numpy as np
import pytest
from zero_shot_support import RECORDS, benchmark_folder, lines, trained_text_run  # noqa: F401 (fixtures)

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install lm-eval")

import torch
import yaml
from lm_eval import simple_evaluate, tasks
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from bearings.adapters.lm_eval import Bearings, Generation
from bearings.core.errors import UserError
from bearings.tasks.benchmark import scored
from bearings.zeroshot.benchmarks import BENCHMARKS
from bearings.zeroshot.results import scores_of

HARNESS = os.path.dirname(tasks.__file__)
# The harness's own definition of each benchmark, and how our records differ from the columns on the hub.
DEFINED = {
    "lambada": ("lambada/lambada_openai.yaml", "test"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "copa": ("super_glue/copa/default.yaml", "validation"),
    "blimp": ("blimp/adjunct_island.yaml", "train"),
}


@pytest.fixture(scope="module")
def model(trained_text):
    return get_model("bearings")(run=str(trained_text[1].path), device="cpu", batch_size=1, max_batch_size=None)


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """The harness's task definitions with data files of ours."""
    folder = tmp_path_factory.mktemp("harness")
    for name, (path, split) in DEFINED.items():
        records = RECORDS["arc" if name == "arc_easy" else name]
        records = records["adjunct_island"] if name == "blimp" else records
        (folder / f"{name}.jsonl").write_text(lines(records))
        given = {"data_files": {split: str(folder / f"{name}.jsonl")}, "cache_dir": str(folder / "cache")}
        # Later keys replace those of the included file.
        own = {"include": f"{HARNESS}/{path}", "task": f"offline_{name}", "dataset_path": "json"}
        own |= {"dataset_name": None, "dataset_kwargs": given, "num_fewshot": 0}
        wanted = f"{'validation' if name == 'blimp' else split}_split"  # BLiMP's validation split is named train
        own |= {key: None for key in ("training_split", "validation_split", "test_split") if key != wanted}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(own))
    return folder


@pytest.mark.parametrize("name", DEFINED)
def test_scores_equal_those_of_the_harness(name, model, offline, trained_text, benchmark_files, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    benchmark, (session, _) = BENCHMARKS[name], trained_text
    manager = tasks.TaskManager(include_path=str(offline), include_defaults=False)
    theirs = simple_evaluate(model=model, tasks=[f"offline_{name}"], task_manager=manager, bootstrap_iters=0)
    results = theirs["results"][f"offline_{name}"]
    questions = benchmark.read(*benchmark.find(benchmark_files))
    if name == "blimp":
        questions = type(questions)([each for each in questions.items if each.group == "adjunct_island"])
    items = scored(session, model.transformer, session.domain, name, questions, prefix=True)
    assert {metric: results[f"{metric},none"] for metric in benchmark.metrics} == scores_of(
        items.groups, items.columns, benchmark.metrics
    )
    samples = theirs["samples"][f"offline_{name}"]
    likelihoods = [[float(answer[0][0]) for answer in each["resps"]] for each in samples]
    if "nats" in items.columns:
        assert [-each for (each,) in likelihoods] == items.columns["nats"].tolist()
    else:
        margins = [
            each[question.gold] - max(np.delete(each, question.gold))
            for each, question in zip(likelihoods, questions.items, strict=True)
        ]
        assert margins == items.columns["margin"].tolist()
    arguments = [tuple(pair) for each in samples for pair in _pairs(each["arguments"])]
    assert arguments == [pair for question in questions.items for pair in question.pairs]


def _pairs(arguments):
    """Context and continuation of each request of a logged sample."""
    if isinstance(arguments, dict):
        return [(each["arg_0"], each["arg_1"]) for each in arguments.values()]
    return [(each[0], each[1]) for each in arguments]


def requests(kind, *arguments):
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def test_rolling_likelihood_scores_every_token_once(model):
    text = "the sea " * 30  # 240 bytes, in windows of 96
    (rolling, short) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("the",)))
    ids = torch.tensor([[256, *text.encode()]])
    with torch.inference_mode():
        first = model.transformer(ids[:, :96])[0].log_softmax(-1).gather(-1, ids[0, 1:97, None]).sum().item()
    assert rolling < first < 0
    assert short == pytest.approx(model.loglikelihood(requests("loglikelihood", ("", "the")))[0][0])
    nats = [model.loglikelihood(requests("loglikelihood", (text[:n], text[n:])))[0][0] for n in (160,)]
    assert rolling < nats[0]


def test_generation_is_greedy_and_stops(model, monkeypatch):
    contexts = [("the sea", {"until": ["\n"], "max_gen_toks": 12}), ("1234", {"until": [], "max_gen_toks": 5})]
    first, second = model.generate_until(requests("generate_until", *contexts))
    tokens = model.tok_encode("1234")
    for _ in range(5):
        with torch.inference_mode():
            tokens.append(int(model.transformer(torch.tensor([tokens]))[0, -1].argmax()))
    assert second == model.codec.decode(tokens[5:])
    whole = model.generate_until(requests("generate_until", ("the sea", {"max_gen_toks": 12})))[0]
    assert first == whole.partition("\n")[0]
    stop = whole[3:5]
    assert (
        model.generate_until(requests("generate_until", ("the sea", {"until": stop, "max_gen_toks": 12})))[0]
        == (whole.partition(stop)[0])
    )
    drawn = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "max_gen_toks": 4}
    assert len(model.generate_until(requests("generate_until", ("a" * 300, drawn)))) == 1
    monkeypatch.setattr(model, "tokens_per_batch", 1)
    many = {**drawn, "max_gen_toks": 12}
    assert len({*model.generate_until(requests("generate_until", *[("the sea", many)] * 4))}) == 4
    assert Generation.of({"until": "x", "do_sample": False, "temperature": 0.7}, 95) == Generation(
        ("x",), 95, 0.0, None, None
    )


def test_a_run_with_cuda_graphs_is_loaded_on_a_cpu(trained_text, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained_text[1].path, run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["trainer"] |= {"accelerator": "gpu", "cuda_graphs": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert Bearings(run=str(run), device="cpu").transformer.embedding.weight.device.type == "cpu"


def test_a_continuation_longer_than_the_model_reads_gives_one_line(model):
    with pytest.raises(UserError, match=r"has 97 tokens, more than the run's data\.length=96: leave out its task"):
        model.loglikelihood(requests("loglikelihood", ("the", "a" * 97)))


def test_unusable_arguments_give_one_line(tmp_path):
    for given, fault in {"": "run=DIRECTORY is missing", "run=a,pretrained=b": "unknown argument pretrained"}.items():
        with pytest.raises(UserError, match=f"model_args: {fault}; allowed: run, stores, prefix"):
            Bearings.create_from_arg_string(given, {"batch_size": 1})
    with pytest.raises(UserError, match="device=tpu: allowed: cpu, cuda"):
        Bearings(run=str(tmp_path), device="tpu")
    with pytest.raises(UserError, match=r"config\.yaml does not exist"):
        Bearings(run=str(tmp_path))

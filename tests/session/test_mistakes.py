"""Mistakes in settings: each is reported in one line, and leaves no partial files."""

import re

import pytest
from command_support import run_command  # noqa: F401

MISTAKES = {
    "domain=jbs": "domain=jbs: did you mean jsb?",
    "encoding=pop": "encoding=pop: did you mean pope?",
    "encoding=PaTH": "encoding=PaTH: did you mean path?",
    "encoding=zzzzz": "encoding=zzzzz: allowed: ",
    "task=trian": "task=trian: did you mean train?",
    "experiment=pope_jbs": "experiment=pope_jbs: did you mean pope_jsb?",
    "domian=jsb": "domian: unknown key; did you mean domain?",
    "domain.sorce=music21": "domain.sorce: unknown key; did you mean domain.source?",
    "+encodings.pop.base=1.0": "encodings.pop: unknown encoding; did you mean pope?",
    "encoding.delta_int=zero": "encoding.delta_int: unknown key; did you mean encoding.delta_init?",
    "model.widht=64": "model.widht: unknown key; did you mean model.width?",
    "trainer.max_steps=3": "trainer.max_steps: unknown key; did you mean trainer.match_steps?",
    "trainer.batch_size=3": "trainer.batch_size: unknown key; did you mean data.batch_size?",
    "task=check task.tokens=3": "task.tokens: unknown key; this task has no options: leave it out",
    "encoding._target_=nonesuch.Spin trust=nonesuch": "encoding._target_=nonesuch.Spin: it cannot be imported "
    "(ModuleNotFoundError: No module named 'nonesuch'): install its package, or add the folder of the package to",
    "encoding=path encoding.window=8": "encoding.window: encoding=path attends to all tokens: use another encoding",
    "encoding=pattern encoding.window=8": "encoding.window: encoding=pattern sets windows in encoding.layers: set them",
    "runs=": "runs='': it should not be empty",
    "task=generate run=": "run='': it should not be empty",
    "+sed=3": "sed: unknown key; did you mean seed? allowed: domain, ",
    "+samples=3": "samples: unknown key; ",
    "+foo={a:3}": "foo: unknown key; ",
    "experiment=null": "experiment=null: leave it out, or name a file; allowed: debug, ",
    "encoding=3.5": "encoding=3.5: leave it out, or name a file; allowed: absolute_learned, ",
    "experiment={a:1}": "experiment={a:1}: leave it out, or name a file; allowed: debug, ",
    "-m domain=jsb,true": "domain=jsb,true: leave it out, or name a file; allowed: flip_flop, ",
    "encoding=": "encoding=: leave it out, or name a file; allowed: absolute_learned, ",
    "~encoding": "~encoding: settings cannot be removed: leave it out to use the default, or write encoding=VALUE\n",
    "~encoding.delta_init": "~encoding.delta_init: settings cannot be removed: ",
    "~seed task=check": "~seed: settings cannot be removed: ",
    "seed=0,1": "seed=0,1: for a sweep over these values, add -m; for a list, write seed=[0,1]\n",
    "domain=text domain.path=a,b.txt": "domain.path=a,b.txt: for a sweep over these values, add -m; for a list, write "
    "domain.path=[a,b.txt]; if the comma is part of the value, write \"domain.path='a,b.txt'\"\n",
    "task=tune task.rates=[1e-3,1e-3]": "task.rates=[0.001, 0.001]: give at least two different learning rates",
    "task=study study=nope": "study=nope: nope/study.yaml does not exist; ",
    "encoding=rope,pope": "encoding=rope,pope: for a sweep over these values, add -m\n",
    "encoding=[rope,pope]": "encoding=[rope,pope]: name one file, or add -m and leave out the brackets for a sweep",
    "--experiment=debug": "--experiment=debug: unknown flag: write settings as key=value, such as experiment=debug",
    "domain=midi": "domain=midi: did you mean experiment=midi? allowed: flip_flop, ",
    "experiment=midi task=prepare": "domain.path=my-midi does not exist: give ",
    "encoding=rope encoding.scaling=yarn": "encoding.scaling=yarn: give scaling_factor and scaling_length\n",
    "--experimental-rerun=nofile": "--experimental-rerun=nofile: there is no such file",
    "-m seed=0,1 --cfg job": "--multirun --cfg: these flags exclude each other: give one of them\n",
    "--resolve": "--resolve: it needs --cfg job",
    "steps=3": "steps: unknown key; did you mean trainer.steps?",
    "encoding=path encoding.base=3": "encoding.base: unknown key of encoding=path; allowed: encoding.beta_max, ",
    "data.batchsize=3": "data.batchsize: unknown key; did you mean data.batch_size?",
    "optimizer.lr=3": "optimizer.lr: unknown key; ",
    "task.sampels=3": "task.sampels: unknown key; did you mean task.samples?",
    "evaluation.overlaps=3": "evaluation.overlaps: unknown key; did you mean evaluation.overlap?",
    "+model.dropuot=0.1": "model.dropuot: unknown key; did you mean model.dropout?",
    "+evaluation.length=64": "evaluation.length: unknown key; ",
    "+model.seed=3": "model.seed: unknown key; ",
    "model.width=abc": "model.width='abc': it should be a valid integer",
    "model.width=1.5": "model.width=1.5: it should be a valid integer",
    "model.mlp=relu": "model.mlp='relu': it should be 'swiglu' or 'gelu'",
    "domain.source=midi": "domain.source='midi': it should be 'music21' or 'separated16'",
    "data.packed=3": "data.packed=3: it should be true or false",
    "seed=-1": "seed=-1: it must be at least 0",
    "seed=99999999999999999999": "seed=99999999999999999999: it must be below 9,223,372,036,854,775,808",
    "task=generate task.sampling_seed=-1": "task.sampling_seed=-1: it must be at least 0",
    "model.mlp_hidden=0": "model.mlp_hidden=0: it must be at least 1, or null",
    "optimizer.learning_rate=nan": "optimizer.learning_rate=nan: it must be a finite number above 0",
    "domain.path=a(b": "domain.path=a(b: cannot be parsed; put a value with special characters in quotes",
    "task=report task.directories=[runs,a(b]": "task.directories=[runs,a(b]: cannot be parsed; check its brackets, and "
    "put each text with special characters in quotes, such as \"task.directories=['my folder',other]\"\n",
    "task=study task.settings={domain.path:a(b}": "task.settings={domain.path:a(b}: cannot be parsed; check its "
    "brackets, and put each text with special characters in quotes, such as \"task.settings={KEY:'my folder'}\"\n",
    "domain._target_=bearings.domains.nonesuch.Dice": "domain._target_=bearings.domains.nonesuch.Dice: it cannot be "
    "imported (ModuleNotFoundError: No module named 'bearings.domains.nonesuch')",
    "--epochs 3": "--epochs: unknown flag: write settings as key=value, such as trainer.steps=100",
    "--cfg": "argument --cfg/-c: expected one argument: write settings as key=value",
    "rope": "rope: write settings as key=value, such as encoding=rope",
    "experiment=debug model=base": "model=base: experiment=debug sets model.width, model.layers, model.heads itself",
    "experiment=midi domain=text": "domain=text: experiment=midi sets domain.path, domain.split itself",
    "seed=x": "seed='x': it should be a valid integer",
    "trainer.precision=8": "trainer.precision=8: it should be 'auto', '32-true' or 'bf16-mixed'",
    "model.width=130": "model.width=130 is not a multiple of model.heads=3: change one, or set model.head_dim=NUMBER\n",
    "model.head_dim=31 encoding=rope": "model.head_dim=31",
    "model.kv_heads=2": "model.kv_heads=2 does not divide model.heads=3: choose a divisor\n",
    "data.length=510": "data.length=510: domain jsb needs a multiple of 4",
    "evaluation.overlap=1.0": "evaluation.overlap=1.0: it must be in [0, 1)",
    "trainer.steps=0": "trainer.steps=0: nothing would be trained: use 1 or more, or set model.pretrained",
    "task.temperature=-1.0": "task.temperature=-1.0",
    "task=generate task.temperature=nan": "task.temperature=nan: it must be a finite number",
    "optimizer.learning_rate=-1": "optimizer.learning_rate=-1",
    "trainer.accelerator=gpu": "trainer.accelerator=gpu: no CUDA GPU is visible",
    "model.width=": "model.width=''",
    "model.width": "",
    "task=tune task.rates=1e-3": "task.rates=0.001: it should be a list, as task.rates=[0.001]",
    "domain=genome domain.valid=C": "domain.valid='C': it should be a list, as domain.valid=[C]",
    "task=tune task.seeds=3": "task.seeds=3: it should be a list, as task.seeds=[3]",
    "domain=genome domain.valid=21": "domain.valid=21: it should be a list, as \"domain.valid=['21']\"",
    "task=tune task.grid=3": "task.grid=3: it should be a mapping, as task.grid={KEY:VALUE}",
    "task=tune task.grid={1:[2,3]}": "task.grid={1: [2, 3]}: each key should be text, as task.grid={KEY:VALUE}",
    "task=tune task.grid={model.dropout:0.1}": "task.grid: model.dropout=0.1 should be a list, as task.grid={model.",
    "task=tune task.rates='[1e-3,1e-2]'": "task.rates='[1e-3,1e-2]': it should be a list, without quotes around it\n",
    "task=tune task.seeds={a:1}": "task.seeds={'a': 1}: it should be a list\n",
    "task=tune task.rates=fast": "task.rates='fast': it should be a list\n",
    "optimizer.betas=0.9": "optimizer.betas=0.9: it should be a list\n",
    "optimizer.betas=[]": "optimizer.betas=[]: it should have 2 values\n",
    "optimizer.betas=[0.9]": "optimizer.betas=[0.9]: it should have 2 values\n",
    "optimizer.betas=[0.9,0.9,0.9]": "optimizer.betas=[0.9, 0.9, 0.9]: it should have 2 values\n",
    "optimizer.betas=[0.9,1]": "optimizer.betas=[0.9, 1]: give two numbers in [0, 1)\n",
    "optimizer.betas=null": "optimizer.betas=null: it should be a list\n",
    "optimizer.betas={a:1}": "optimizer.betas={a:1}: it should be a list\n",
    "optimizer=[1]": "optimizer=[1]: it should be a mapping\n",
    "optimizer={lr:3}": "optimizer.lr: unknown key; ",
    "optimizer.betas.a=1": "optimizer.betas.a=1: a is not a position in a list: set the whole list\n",
    "optimizer.betas.5=1": "optimizer.betas.5=1: the list has no such position: set the whole list\n",
    "optimizer.betas=[a,0.9]": "optimizer.betas=['a', 0.9]: each value should be a valid number\n",
    "encoding=pattern encoding.layers=[1]": "encoding.layers=[1]: each value should be text or a mapping",
    "task=report task.directories=[1,a]": "task.directories=[1, 'a']: each value should be text, as "
    "\"task.directories=['1', 'a']\"\n",
    "encoding=seqpe encoding.encoder_layers=100000000": "encoding.encoder_layers=100000000: it must be at most 1,024",
    "trainer.accelerator=cpu trainer.devices=0": "trainer.devices=0: no GPU is used: give the number of CPU processes",
    "runs=2024": "runs=2024: it should be text, as \"runs='2024'\"\n",
    "runs=1e5": "runs=100000.0: it should be text: put it in quotes\n",
    "trainer.match_steps=2 trainer.distil_steps=3 trainer.steps=4": "trainer.steps=4: it must be at least "
    "trainer.match_steps=2 plus trainer.distil_steps=3\n",
    "domain=genome domain.valid=true": "domain.valid=true: it should be a list\n",
    f"task=tune task.seeds=[{2**63}]": f"task.seeds=[{2**63}]: each must be 0 or more and below 2**63",
    f"trainer.steps={10**20}": f"trainer.steps={10**20}: its absolute value must be below 9,223,372,036,854,775,808",
    "encoding.spacing=nan": "encoding.spacing=nan: it must be a finite number",
    "encoding=rope --hydra-help": "--hydra-help takes no settings: leave them out",
    "task=evaluate": "run=null: this task needs run=DIRECTORY",
    "task=generate run=nowhere": "run=nowhere: nowhere/config.yaml does not exist",
    "domain.source=separated16 domain.path=nowhere.json": "nowhere.json",
    "domain=flip_flop data.length=256": "data.length=256: domain flip_flop needs at least 512, its longest example",
    "domain=mqrar domain.queries=2.0": "domain.queries=2.0: it must be in (0, 1]",
    "task=report encoding._target_=gone.X trust=gone": "encoding._target_=gone.X: task=report does not read this",
    "task=report seed=3": "seed=3: task=report does not read this setting; it reads task.*, trust, runs, stores",
    "task=study study=jsb encoding=rope": "encoding=rope: task=study does not read this setting; it reads task.*, ",
    "task=report": "runs: no such folder; set runs=",
    "task=report task.directories=[elsewhere]": "elsewhere: no such folder; set runs=",
    "task=report task.directories=[]": "task.directories=[]: name at least one folder of runs",
    "task=report task.margin=0": "task.margin=0.0: it must be above 0, or null for that of the study or the domain",
    "domain=text domain.path='~nobodyofthisname/a' task=prepare": "~nobodyofthisname/a does not exist: give a file",
    "domain=text model.pretrained='~nobodyofthisname/a'": "model.pretrained=~nobodyofthisname/a: ~nobodyofthisname/a ",
    "task=study study='~nobodyofthisname/a'": "study=~nobodyofthisname/a: ~nobodyofthisname/a/study.yaml ",
    "domain=text task=prepare": "domain.path is not set: give a file or folder of",
    "match=parms": "match='parms': it should be 'params' or 'flops'",
    "match=flops model.mlp_hidden=8 encoding=path": "match=flops: the encoding costs more than the whole MLP of model",
    "task=tune task.rates=[1e-3]": "task.rates=[0.001]: give at least two different learning rates",
    "task=tune task.rates=[nan,1e-3]": "task.rates=[nan, 0.001]: give at least two different learning rates, finite",
    "task=extrapolate": "run=null: this task needs run=DIRECTORY",
    "task=extrapolate task.contexts=[]": "task.contexts=[]: give at least one length",
    f"task=extrapolate task.contexts=[{2**48}]": f"task.contexts=[{2**48}]: give at least one length, each from 1",
    "task=mechanisms": "run=null: this task needs run=DIRECTORY",
    "task=keep run=nowhere": "run=nowhere: nowhere/config.yaml does not exist",
    "evaluation.validation_tokens=0": "evaluation.validation_tokens=0: it must be at least 1",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(run, tmp_path, arguments):
    status, out, err = run(*arguments.split())
    assert status == 2
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert err.startswith("error: " + MISTAKES[arguments])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("encoding=rope,path encoding.window=8", "encoding.window: encoding=path attends to all tokens"),
        (
            "encoding=pope,rope seed=0,1 encoding.delta_init=zero",
            "encoding.delta_init: unknown key of encoding=rope; allowed: encoding.base, ",
        ),
        (
            "encoding=rope,pope encoding.delta_int=zero",
            "encoding.delta_int: unknown key of encoding=pope; did you mean encoding.delta_init? allowed: ",
        ),
    ],
)
def test_a_mistake_in_a_sweep_names_the_choice_without_the_key(run, tmp_path, arguments, message):
    status, _, err = run("-m", *arguments.split())
    assert status == 2
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert err.startswith("error: " + message)
    assert not (tmp_path / "runs" / "jsb").exists()

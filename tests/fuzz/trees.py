"""Changes of what a YAML, JSON or CSV file says: nodes of other types and names, hostile texts, aliases."""

import copy
import csv
import io
import json
import random
from pathlib import Path

import yaml

from .mutators import TEXT_EDGES

# A test folder on the module path holds SENTINEL.py, which leaves a mark when it is imported.
SENTINEL = "bearings_fuzz_sentinel"
MARKUP = "<img src=x onerror=FUZZ>"
FORMULA = "=FUZZ(1)"
CALLED = (
    *("os.system", "subprocess.Popen", "torch.hub.load", "builtins.eval", f"{SENTINEL}.call", f"{SENTINEL}.call", "."),
    *(
        "bearings.tasks.train.Train",
        "bearings.session.run_directory.write_text",
        "bearings.studying.running.execute",
        "posix.system",
    ),
    *(
        "bearings.session.cli.os.system",
        "bearings.domains.store.StoreWriter",
        "bearings.encodings.rope.RoPE",
        "hydra.utils.call",
    ),
    *(
        SENTINEL,
        f"bearings.{SENTINEL}",
        "bearings.domains.jsb.JSB",
        "bearings.domains",
        "encodings.idna.os.system",
        "this.d",
    ),
)
ATTACKS = (
    *CALLED,
    *("../../../../etc/passwd", "/etc/passwd", "/dev/zero", "..", "~", "a\0b", "a/b", "-rf", "[red]FUZZ[/nope]", "[/]"),
    *(
        MARKUP,
        FORMULA,
        "+FUZZ",
        "@FUZZ",
        "$\\frac{1$",
        "a\nb",
        "\x1b[31mred",
        "|`*_#",
        "\ud800",
        "%s{0}",
        "${seed}",
        "${oc.env:HOME}",
    ),
)
NAMES = (
    "rope",
    "pope",
    "path",
    "nope",
    "jsb",
    "genome",
    "text",
    "train",
    "test",
    "valid",
    "small",
    "16-mixed",
    "auto",
    "yarn",
)
ALIASES = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]
)
LINES = (
    *(
        "seed=range(0,100000000)",
        "seed=range(0,100000) model.width=range(1,100000)",
        "seed=0,1 seed=2",
        "encoding=",
        "=",
    ),
    *(
        "hydra.launcher.x=1",
        "hydra/launcher=submitit_slurm",
        f"+hydra.callbacks.x._target_={SENTINEL}.call",
        "seed=[",
        "~seed",
    ),
    *(
        "+a={b:{c:d}}",
        "task=report",
        "run=/etc",
        "domain._target_=os.system",
        "seed=choice(1,2,3)",
        "seed=glob(*)",
        "a b c",
    ),
    *(
        "seed=shuffle(range(0,1000000000))",
        "seed=" + ",".join(map(str, range(5000))),
        "seed=interval(0,1)",
        "x" * 100_000,
    ),
)


def _value(rng: random.Random):
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice((None, True, False, [], {}, "", [[]], {"": None}, {"a": {"b": 1}}, [1, "a", None]))
    if kind == 1:
        return rng.choice((0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf")))
    if kind in (2, 3):
        return rng.choice(ATTACKS)
    if kind == 4:
        return rng.choice(NAMES)
    if kind == 5:
        return rng.choice(("x" * 100_000, ["x"] * 10_000, {f"k{i}": i for i in range(5000)}, "é\u202e\u0000"))
    if kind == 6:
        nested: object = 1
        for _ in range(rng.choice((5, 80, 400))):
            nested = [nested] if rng.random() < 0.5 else {"a": nested}
        return nested
    return rng.choice(TEXT_EDGES)


def _nodes(tree, path=()):
    yield path
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield from _nodes(value, (*path, key))


def changed_tree(rng: random.Random, tree) -> tuple[object, str]:
    """A copy of `tree` with one node replaced, removed, doubled, renamed or swapped with another."""
    tree = copy.deepcopy(tree)
    nodes = [path for path in _nodes(tree) if path]
    if isinstance(tree, list) and len(nodes) > 5000:
        nodes = nodes[:5000]
    if not nodes or rng.random() < 0.02:
        return _value(rng), "replace all"
    if rng.random() < 0.3:  # a key that is not among many figures is as likely as these
        keyed = [path for path in nodes if isinstance(path[-1], str)]
        nodes = keyed or nodes
    path = rng.choice(nodes)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key, action = path[-1], rng.choice(("replace", "replace", "replace", "nudge", "remove", "rename", "double", "swap"))
    if action == "nudge" and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] += rng.choice((1, -1, 0.5))
    elif action == "remove":
        del parent[key]
    elif action == "rename" and isinstance(parent, dict):
        parent[
            rng.choice(
                (
                    *NAMES,
                    "_target_",
                    "_args_",
                    "x",
                    "",
                    1,
                    None,
                    key.upper() if isinstance(key, str) else "k",
                )
            )
        ] = parent.pop(key)
    elif action == "double" and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif action == "swap":
        other = rng.choice([each for each in nodes if each[:-1] == path[:-1]])[-1]
        parent[key], parent[other] = parent[other], parent[key]
    else:
        action = "replace"
        if rng.random() < 0.1 and isinstance(parent, dict):
            key = "_target_"
        parent[key] = rng.choice(CALLED) if key == "_target_" and rng.random() < 0.8 else _value(rng)
    return tree, f"{action} {'.'.join(map(str, path))[:60]}"


def changed_json(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice(
            (b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b"{}", b'"x"', b"1", b"NaN", b"")
        ), "other JSON"
    if kind == 1:
        return data.replace(b"{", b'{"seed": 1, "sha256": 7, ', 1), "keys twice"
    tree = json.loads(data)
    if isinstance(tree, dict) and "sessions" in tree and rng.random() < 0.5:  # a manifest as before it had a digest
        del tree["sha256"]
    tree, what = changed_tree(rng, tree)
    return _dumped(json.dumps, tree, indent=rng.choice((None, 1))), what


def changed_line(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """One line of a file of JSON lines."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at], what = changed_json(rng, lines[at])
    return b"".join(line if line.endswith(b"\n") else line.replace(b"\n", b" ") + b"\n" for line in lines), what


def changed_yaml(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    kind = rng.randrange(12)
    text = data.decode()
    if kind == 0:
        more = (
            *(
                ALIASES,
                "a: &a [*a]",
                "x: &x {y: *x}",
                "x: !!python/object/apply:os.system ['touch FUZZ']",
                "? [1, 2]\n: 3",
            ),
            *(
                "x: !!python/name:os.system",
                "x: !!binary aGk=",
                "x: 2001-01-01",
                "<<: {seed: 7}",
                "1: 2",
                "x: !!set {a}",
            ),
            *(
                "- a",
                "---\nb: 1",
                "\tx: 1",
                "x: [" * 3000,
                "x: {a: " * 1000,
                "%YAML 9.9",
                "x: *nothing",
                "seed: 08:30:00",
            ),
        )
        chosen = rng.choice(more)
        return (f"{text}\n{chosen}\n" if rng.random() < 0.7 else f"{chosen}\n").encode(), f"YAML: {chosen[:30]}"
    if kind == 1:  # an alias in the place of a value
        lines = text.splitlines()
        at = rng.randrange(len(lines))
        key = lines[at].split(":")[0]
        lines[at] = f"{key}: *a9" if rng.random() < 0.5 else f"{key}: &s {{again: *s}}"
        return f"{ALIASES}\n{chr(10).join(lines)}\n".encode(), f"alias for {key.strip()[:30]}"
    if kind == 2 and (calls := [line for line in text.splitlines() if "_target_:" in line]):
        line, called = rng.choice(calls), rng.choice((*CALLED, *[f"{SENTINEL}.call"] * 8))
        return text.replace(line, f"{line.split(':')[0]}: {called}", 1).encode(), f"call: {called}"
    tree, what = changed_tree(rng, yaml.safe_load(text))
    return _dumped(yaml.safe_dump, tree, sort_keys=rng.random() < 0.2, allow_unicode=rng.random() < 0.5), what


def changed_list(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A study.yaml: as any YAML, or with a hostile line."""
    if rng.random() < 0.5:
        return changed_yaml(rng, data)
    tree, line = yaml.safe_load(data), rng.choice(LINES)
    where = rng.choice(("runs", "runs", "then", "variants"))
    lines = tree.setdefault(where, [])
    if lines and rng.random() < 0.5:
        lines[rng.randrange(len(lines))] += f" {line}"
    else:
        lines.append(line)
    return yaml.safe_dump(tree).encode(), f"{where}: {line[:50]}"


def changed_csv(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    rows = list(csv.reader(io.StringIO(data.decode(errors="replace"))))
    if not rows or not rows[0]:
        return b"a,b\n1,2\n", "other CSV"
    row, action = rng.choice(rows), rng.choice(("cell", "cell", "cell", "short", "long", "rows", "header", "huge"))
    if action == "cell" and row:
        row[rng.randrange(len(row))] = rng.choice((*TEXT_EDGES, *ATTACKS)).replace("\ud800", "?")
    elif action == "short":
        del row[-1:]
    elif action == "long":
        row.append("7")
    elif action == "rows":
        rows.insert(rng.randrange(len(rows)), rng.choice(rows))
    elif action == "header":
        del rows[0]
    else:
        row[:1] = ["9" * rng.choice((400, 200_000))]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(), f"CSV: {action}"


def _dumped(dump, tree, **options) -> bytes:
    try:
        return dump(tree, **options).encode(errors="surrogatepass")
    except (
        ValueError,
        TypeError,
        RecursionError,
        yaml.YAMLError,
    ):  # nested beyond what can be written, or keys of no type
        return b"[" * 500 + b"]" * 500


def leave_sentinel(folder: Path, mark: Path) -> None:
    """Write the module that leaves `mark` when it is imported or called."""
    code = f'open({str(mark)!r}, "w").close()\ndef call(*a, **k):\n    open({str(mark)!r}, "w").close()\n'
    (folder / f"{SENTINEL}.py").write_text(code)

"""Tables and plots of speed, from the CSV files in benchmarks/results."""

from itertools import chain

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ..core.checked_files import read_csv
from ..studying.catalogue import ROOT
from .facts import documented
from .markdown import Open, plot, table, write

RESULTS = ROOT / "benchmarks" / "results"
HEAD_DIM, SHOWN = 64, (4096, 16384)  # of the tables of operators
UTILISATION = ("MFU", "MFU, nanoGPT's count")
OWN = ("nope", "rope", "pope", "fox", "path", "path_fox")


def write_performance(opened: Open) -> None:
    """Write `performance.md`: the prose in docs/, with each `<!-- NAME -->` replaced by what NAME in PARTS returns."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, part in PARTS.items():
        mark = f"<!-- {name} -->\n"
        if mark not in text:
            raise ValueError(f"docs/performance.md: it lacks the line {mark.strip()}")
        text = text.replace(mark, part(opened))
    write(opened, "performance.md", text)


def read(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file in benchmarks/results."""
    return read_csv(RESULTS / name)


def measured_on(rows: list[dict[str, str]], name: str) -> str:
    """Where rows come from: device, versions and commits."""
    devices, torches = ({row[key] for row in rows} for key in ("device", "torch"))
    commits = {row["commit"][:7] + "+" * row["commit"].endswith("+") for row in rows}
    return (
        f"Measured on {', '.join(sorted(devices))} with PyTorch {', '.join(sorted(torches))} at commit "
        f"{', '.join(sorted(commits))}. All values: `benchmarks/results/{name}`.\n"
    )


def training(opened: Open) -> str:
    """Tokens per second of a model of GPT-2's size, each contender at its fastest."""
    name = "training_h200.csv"
    rows = read(name)
    best = {row["contender"]: row for row in sorted(rows, key=lambda row: float(row["tokens_per_s"]))}
    ordered = sorted(best.values(), key=lambda row: -float(row["tokens_per_s"]))

    def draw(colour: str) -> Figure:
        figure, axis = plt.subplots(figsize=(7.2, 0.32 * len(ordered) + 0.8), layout="constrained")
        labels = [row["contender"] for row in ordered][::-1]
        values = [float(row["tokens_per_s"]) / 1000 for row in ordered][::-1]
        shades = [colour if label.split()[0] in OWN else "#999999" for label in labels]
        axis.barh(labels, values, color=shades)
        axis.set(xlabel="thousand tokens per second (blue: bearings, grey: other projects)")
        axis.spines[["top", "right"]].set_visible(False)
        return figure

    picture = plot(opened, "performance-training", "Tokens per second of each model in training", draw)
    cells = (
        [
            _marked(row["contender"]),
            row["steps"],
            f"{float(row['tokens_per_s']):,.0f}",
            *_utilisation(row),
            f"{int(row['vocabulary']):,}",
        ]
        for row in ordered
    )
    heads = ["model", "steps are", "tokens/s", *UTILISATION, "vocabulary"]
    return f"{picture}\n\n{table(heads, cells, numbers=(2, 3, 4, 5))}\n{measured_on(rows, name)}"


def sizes(opened: Open) -> str:
    """Tokens per second and memory of larger models, relative to RoPE's and nanoGPT's of the same size."""
    name = "training_sizes_h100.csv"
    rows = read(name)
    best: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: float(row["tokens_per_s"])):
        best[row["size"], row["contender"]] = row
    peaks = {(row["size"], row["contender"]): row["peak_mib"] for row in rows if row["peak_mib"]}
    bases = [base for base in ("rope", "nanogpt") if any(contender == base for _, contender in best)]

    def relative(row: dict[str, str], base: str) -> str:
        reference = best.get((row["size"], base))
        return "" if reference is None else f"{float(row['tokens_per_s']) / float(reference['tokens_per_s']):.2f}"

    cells = (
        [
            size,
            _marked(contender),
            row["steps"],
            f"{float(row['tokens_per_s']):,.0f}",
            *(relative(row, base) for base in bases),
            *_utilisation(row),
            f"{int(peaks[size, contender]):,}" if (size, contender) in peaks else "",
            f"{row['batch']} x {int(row['length']):,}",
        ]
        for size in dict.fromkeys(row["size"] for row in rows)
        for (of, contender), row in reversed(best.items())
        if of == size
    )
    heads = [
        *("size", "model", "steps are", "tokens/s"),
        *(f"relative to {base}" for base in bases),
        *(*UTILISATION, "peak MiB", "rows of tokens"),
    ]
    return f"{table(heads, cells, numbers=range(3, len(heads)))}\n{measured_on(rows, name)}"


def layers(opened: Open) -> str:
    """Time of the layers around attention, relative to this project's; empty if not measured."""
    name = "layers_h200.csv"
    if not (RESULTS / name).exists():
        return ""
    rows = read(name)
    cells = (
        [
            row["part"],
            row["size"],
            row["name"],
            *(_ratio(row[key]) for key in ("forward_ratio", "training_ratio")),
            f"{float(row['peak_mib']):,.0f}" if row["peak_mib"] else "",
            f"{float(row['error_gradients']):.1e}" if row["error_gradients"] else "",
        ]
        for row in rows
    )
    heads = ["part", "size", "implementation", "forward", "forward and backward", "peak MiB", "error of gradients"]
    return f"{table(heads, cells, numbers=range(3, len(heads)))}\n{measured_on(rows, name)}"


def _marked(contender: str) -> str:
    """A contender's name, as code if it is an encoding of this project, perhaps with settings."""
    return f"`{contender}`" if contender.split()[0] in OWN else contender


def _utilisation(row: dict[str, str]) -> list[str]:
    """The share of the GPU's peak, as this project and as nanoGPT count FLOPs."""
    return [f"{100 * float(row[key]):.1f} %" if row[key] else "" for key in ("mfu", "mfu_nanogpt")]


def scaling(opened: Open) -> str:
    """Tokens per second of several GPUs."""
    names = "scaling_h200.csv", "scaling_h100.csv"
    found = {name: read(name) for name in names}
    cells = (
        [
            row["device"].removeprefix("NVIDIA "),
            row["encoding"],
            row["devices"],
            {"context": "context parallel"}.get(row["strategy"], row["strategy"].upper()),
            f"{row['batch']} x {int(row['length']):,}",
            f"{int(row['tokens_per_s']):,}",
            f"{100 * float(row['efficiency']):.1f} %",
        ]
        for row in chain(*found.values())
    )
    heads = ["GPU", "encoding", "GPUs", "strategy", "rows of tokens", "tokens/s", "efficiency"]
    made = "\n".join(measured_on(rows, name) for name, rows in found.items())
    return f"{table(heads, cells, numbers=(2, 4, 5, 6))}\n{made}"


def encodings(opened: Open) -> str:
    """What each encoding costs relative to RoPE: one layer, and a model of GPT-2's size."""
    name, of_models = "encodings_h200.csv", "training_encodings_h200.csv"
    rows = {row["encoding"]: row for row in read(name)}
    speeds = {row["contender"]: row for row in read(of_models)}
    cells = (
        [
            f"[`{encoding}`](encodings/{encoding}.md)",
            each.about.mechanism,
            *(f"{float(rows[encoding][key]):.2f}" for key in ("forward_ratio", "training_ratio", "decode_ratio")),
            f"{float(rows[encoding]['peak_mib']):,.0f}",
            _ratio(speeds.get(encoding, {}).get("ratio", "")),
        ]
        for encoding, each in documented().items()
        if encoding in rows
    )
    heads = ["encoding", "mechanism", "forward", "forward and backward", "decode", "peak MiB", "tokens/s"]
    shown = table(heads, cells, numbers=range(2, len(heads)))
    made = "\n".join(measured_on(read(each), each) for each in (name, of_models))
    return f"{shown}\n{made}"


def attention(opened: Open) -> str:
    """Time of each operator relative to RoPE with cuDNN."""
    name = "attention_h200.csv"
    return _operators(read(name), name)


def path(opened: Open) -> str:
    """Time of PaTH's operators relative to RoPE with cuDNN."""
    parts = ("path_h200.csv", HEAD_DIM), ("path_h100.csv", HEAD_DIM), ("path_h100.csv", 2 * HEAD_DIM)
    return "\n".join(_operators(read(name), name, head_dim) for name, head_dim in parts)


def _operators(rows: list[dict[str, str]], name: str, head_dim: int = HEAD_DIM) -> str:
    """Relative times with heads of `head_dim` and the lengths SHOWN; a row for each operator."""
    found = {(row["name"], int(row["length"])): row for row in rows if int(row["head_dim"]) == head_dim}
    names = dict.fromkeys(operator for operator, length in found if length in SHOWN)
    columns = {
        f"{title}, T = {length:,}": (key, length)
        for key, title in {"forward_ratio": "forward", "training_ratio": "forward and backward"}.items()
        for length in SHOWN
    }
    cells = (
        [each, *(_ratio(found.get((each, length), {}).get(key, "")) for key, length in columns.values())]
        for each in names
    )
    shown = table(["operator", *columns], cells, numbers=range(1, len(columns) + 1))
    return f"Head size {head_dim}, rows of T tokens.\n\n{shown}\n{measured_on(rows, name)}"


def _ratio(text: str) -> str:
    return f"{float(text):.2f}" if text else ""


def preparation(opened: Open) -> str:
    """Speed of preparing token stores."""
    rows = read("preparation_cpu.csv")
    cells = ([row["what"], f"{float(row['rate']):,.1f} {row['unit']}/s", f"{row['peak_mib']} MiB"] for row in rows)
    machines = ", ".join(sorted({f"{row['machine']}, {row['cores']} cores" for row in rows}))
    note = f"Measured on {machines}. All values: `benchmarks/results/preparation_cpu.csv`.\n"
    return f"{table(['input', 'speed', 'peak memory'], cells, numbers=(1, 2))}\n{note}"


PARTS = {
    "training": training,
    "sizes": sizes,
    "layers": layers,
    "encodings": encodings,
    "scaling": scaling,
    "attention": attention,
    "path": path,
    "preparation": preparation,
}

"""Draws which folder imports which, from the layers in import-linter's contract and the imports that grimp finds."""

import tomllib
from collections.abc import Sequence

import grimp

from ..studying.catalogue import ROOT
from .markdown import Open

WIDTH, STEP, BOX = 760, 74, (168, 38)
SCHEMES = {"light": ("#1f2328", "#8a9099", "#f3f6fa"), "dark": ("#e2e4e9", "#868c99", "#2b2f3a")}  # text, lines, boxes
PURPOSE = {
    "documentation": "this site",
    "benchmarks": "speed, measured",
    "adapters": "for other packages",
    "tasks": "train, evaluate, report ...",
    "huggingface": "export for transformers",
    "studying": "runs of a study",
    "reporting": "statistics, tables, plots",
    "session": "configuration, run directory",
    "lightning_modules": "model and training",
    "encodings": "positional encodings",
    "zeroshot": "benchmark questions",
    "kernels": "attention, loss",
    "domains": "where tokens come from",
    "pretrained": "other projects' checkpoints",
    "core": "errors, options, files",
}


def layers() -> list[list[str]]:
    """The folders, highest first, as the contract in pyproject.toml arranges them."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("bearings.") for name in layer.split("|")] for layer in found]


def imports(folders: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of folders of which the first imports from the second."""
    packages = [f"bearings.{folder}" for folder in folders]
    inner = [f"bearings.kernels.{path.name}" for path in sorted((ROOT / "kernels").iterdir()) if path.is_dir()]
    graph = grimp.build_graph(*packages, *(name for name in inner if "__" not in name), cache_dir=None)
    modules = ((here, there) for here in graph.modules for there in graph.find_modules_directly_imported_by(here))
    pairs = {(here.split(".")[1], there.split(".")[1]) for here, there in modules}
    return sorted((importer, imported) for importer, imported in pairs if importer != imported)


def write_graph(opened: Open) -> None:
    """Write `assets/imports-light.svg` and `assets/imports-dark.svg`."""
    rows = layers()
    pairs = imports([folder for row in rows for folder in row])
    for scheme, colours in SCHEMES.items():
        with opened(f"assets/imports-{scheme}.svg", "w") as file:
            file.write(_drawn(rows, pairs, *colours))


def _drawn(rows: list[list[str]], pairs: list[tuple[str, str]], text: str, line: str, fill: str) -> str:
    """Boxes from the highest layer to the lowest; arrows to the next layer are straight, others pass at the sides."""
    places, level = {}, {}
    for number, row in enumerate(rows):
        for index, folder in enumerate(row):
            x = WIDTH / 2 + (index - (len(row) - 1) / 2) * (BOX[0] + 60)
            places[folder], level[folder] = (x, 30 + number * STEP), number
    height = 30 + (len(rows) - 1) * STEP + BOX[1] + 10
    arrows, boxes = [], []
    for importer, imported in pairs:
        (x1, y1), (x2, y2) = places[importer], places[imported]
        span = level[imported] - level[importer]
        if span == 1:
            path = f"M{x1},{y1 + BOX[1]} L{x2},{y2}"
        else:
            outer = x1 + x2 - WIDTH  # two boxes in a row: arrows stay on the outer side
            side = outer / abs(outer) if outer else (-1 if span % 2 else 1)
            edge = side * BOX[0] / 2
            bend = WIDTH / 2 + side * (BOX[0] / 2 + abs(outer) / 2 + 22 + span * 26)
            a, b = y1 + BOX[1] / 2, y2 + BOX[1] / 2
            path = f"M{x1 + edge},{a} C{bend},{a} {bend},{b} {x2 + edge},{b}"
        arrows.append(f'<path d="{path}" fill="none" stroke="{line}" stroke-width="1.2" marker-end="url(#tip)"/>')
    for folder, (x, y) in places.items():
        boxes.append(
            f'<rect x="{x - BOX[0] / 2}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="6" fill="{fill}" '
            f'stroke="{text}"/>'
            f'<text x="{x}" y="{y + 16}" font-weight="bold" text-anchor="middle">{folder}/</text>'
            f'<text x="{x}" y="{y + 31}" font-size="10.5" text-anchor="middle">{PURPOSE.get(folder, "")}</text>'
        )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L10,5 L0,10 z" fill="{line}"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{text}">{tip}{"".join(arrows)}{"".join(boxes)}</svg>\n'
    )

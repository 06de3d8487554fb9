"""Measures how well trained runs model and continue the beginnings of documents. Writes a CSV.

    python -m bearings.benchmarks.beginnings RUN [RUN ...] --stores data --out beginnings.csv

For each run, the best checkpoint gives nats/token of the first targets of the test documents and of all others, in the
scoring windows of the run. For runs on chorales, it also gives the share of 16th notes at which the soprano is below
the bass, by position in the piece, in the test split and in pieces sampled from the start token.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from ..domains.chorales import VOICES
from ..domains.jsb import FIRST
from ..domains.store import Store
from ..lightning_modules.data_module import IGNORED, collate
from ..lightning_modules.evaluation import Window, autocast, piece_of
from ..lightning_modules.sampling import sample
from ..lightning_modules.transformer import Transformer
from ..session.run_choices import on_one_device
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..tasks.evaluate import score
from .record import parser_of, source, write_rows

FIRST_TARGETS = 64
STEPS, BIN = 256, 32  # 16th notes per piece that are counted, and per share
SAMPLING = ("1.0:1.0", "1.0:0.95", "1.0:0.9", "0.9:0.95")
ROWS = 32  # documents per forward pass


def opened(path: Path, stores: str | None) -> tuple[RunDirectory, Session]:
    """A run, and a session with its configuration on the device of this machine."""
    run = RunDirectory.open(path).trained()
    return run, Session.of(on_one_device(run, "auto") | ({} if stores is None else {"stores": stores}))


@torch.inference_mode()
def beginnings(session: Session, model: Transformer, store: Store) -> Iterator[dict]:
    """Nats/token of the first targets of the test documents, and of the rest."""
    records = score(session, model, store, "test")
    index, targets, nats = store.documents("test"), 0, 0.0
    first = min(FIRST_TARGETS, session.data.length)
    for begin in range(0, len(index), ROWS):
        documents = index[begin : begin + ROWS]
        batch = collate([[piece_of(store, document, Window(document, 0, 0, first))] for document in documents])
        inputs, wanted = batch["inputs"].to(session.settings.device), batch["targets"].to(session.settings.device)
        with autocast(session.settings.device, session.settings.precision):
            found, _ = model.token_nats(inputs, wanted)
        nats += found.double().sum().item()
        targets += int((wanted != IGNORED).sum())
    rest = int(records.tokens.sum()) - targets
    yield {"of": "test", "what": "nats/token", "first": 0, "end": first, "count": targets, "value": nats / targets}
    if rest:
        value = (records.nats.sum() - nats) / rest
        yield {"of": "test", "what": "nats/token", "first": first, "end": "", "count": rest, "value": value}


def crossings(pieces: Iterable[np.ndarray]) -> Iterator[dict]:
    """Share of 16th notes at which the soprano is below the bass, by position in the piece; at a rest it is not.

    Args:
        pieces: token ids of each piece, without the start token.
    """
    below, steps = np.zeros((2, STEPS))
    for ids in pieces:
        soprano, *_, bass = np.asarray(ids[: len(ids) // len(VOICES) * len(VOICES)]).reshape(-1, len(VOICES))[:STEPS].T
        below[: len(bass)] += (soprano >= FIRST) & (bass >= FIRST) & (soprano < bass)
        steps[: len(bass)] += 1
    for begin in range(0, STEPS, BIN):
        here = slice(begin, begin + BIN)
        if count := int(steps[here].sum()):
            share = below[here].sum() / count
            yield {"what": "soprano below bass", "first": begin, "end": begin + BIN, "count": count, "value": share}


def chorales(session: Session, model: Transformer, store: Store, samples: int, settings: list[str], seed: int):
    """`crossings` in the test split and in pieces sampled with each of `settings`."""
    test = [store.document(index)[1:] for index in store.documents("test")]
    yield from ({"of": "test", **row} for row in crossings(test))
    prompt = torch.full((samples, 1), session.domain.start, device=session.settings.device)
    for setting in settings:
        temperature, top_p = map(float, setting.split(":"))
        how = {"temperature": temperature, "top_p": top_p, "seed": seed, "forbidden": (session.domain.start,)}
        drawn = sample(model, prompt, STEPS * len(VOICES), **how).cpu().numpy()
        of = f"{samples} samples, temperature {temperature}, top_p {top_p}, seed {seed}"
        yield from ({"of": of, **row} for row in crossings(drawn))


def main() -> None:
    """Measure each run, print its rows, and update the CSV after each run."""
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories created by task=train")
    parser.add_argument("--stores", help="folder of token stores, if it differs from that of the runs")
    parser.add_argument("--samples", type=int, default=64, help="pieces per setting")
    parser.add_argument("--settings", nargs="*", default=list(SAMPLING), metavar="TEMPERATURE:TOP_P")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    arguments = parser.parse_args()
    rows: list[dict] = []
    for path in arguments.runs:
        run, session = opened(path, arguments.stores)
        store, model = session.trained(run)
        made_by = {
            "device": session.device_name,
            "torch": torch.__version__,
            "commit": source(arguments.commit),
        }
        found = [*beginnings(session, model, store)]
        if session.domain.name == "jsb":
            found += chorales(session, model, store, arguments.samples, arguments.settings, arguments.seed)
        for row in found:
            print(f"{path}  {row['of']}  {row['what']} {row['first']}..{row['end']}  {row['value']:.4f}", flush=True)
        rows += [{"run": path, **row, **made_by} for row in found]
        write_rows(arguments.out, rows)


if __name__ == "__main__":
    main()

"""Scores of variants: both strands of whole windows, for any tokenizer and batch size."""

import numpy as np
import pytest
import torch
from conftest import nats_of

from bearings.domains.genome import Genome
from bearings.domains.variants import Reference, read_table
from bearings.lightning_modules import evaluation
from bearings.lightning_modules.variants import variant_nats

COMPLEMENT = str.maketrans("ACGT", "TGCA")


class Trigram(torch.nn.Module):
    """Logits depend on the last two tokens, so that a changed token changes several nats."""

    def __init__(self, vocabulary):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(2, vocabulary, vocabulary, generator=generator))

    def token_nats(self, tokens, targets):
        before = torch.nn.functional.pad(tokens, (1, 0))[:, :-1]
        return nats_of(self.table[0][tokens] + self.table[1][before], targets)


@pytest.mark.parametrize(("tokenizer", "window"), [("base", 12), ("kmer6", 24)])
def test_scores_are_differences_of_whole_windows(tmp_path, monkeypatch, tokenizer, window):
    sequence = "".join(np.random.default_rng(0).choice([*"ACGT"], 60))
    (tmp_path / "genome.fa").write_text(f">chr1\n{sequence}\n")
    rows = [(at, new) for at in (3, 20, 21, 57) for new in "ACGT" if new != sequence[at]]
    lines = [f"chr1\t{at + 1}\t{sequence[at]}\t{new}\t{at % 2}" for at, new in rows]
    (tmp_path / "a.tsv").write_text("\n".join(["chrom\tpos\tref\talt\tlabel", *lines]))
    domain, table = Genome(tokenizer=tokenizer), read_table(tmp_path / "a.tsv")
    reference, model = Reference([tmp_path / "genome.fa"], [table], window), Trigram(domain.vocabulary)

    def nats(letters):
        tokens = torch.from_numpy(domain.encode(letters).astype(np.int64))[None]
        with torch.no_grad():
            return float(model.token_nats(tokens[:, :-1], tokens[:, 1:])[0].sum())

    expected = []
    for at, new in rows:
        changed = f"{sequence[:at]}{new}{sequence[at + 1 :]}"
        cut = slice(max(0, at - window // 2), at - window // 2 + window)
        strands = ((text[cut], text[cut].translate(COMPLEMENT)[::-1]) for text in (changed, sequence))
        alternative, original = (np.mean([nats(strand) for strand in each]) for each in strands)
        expected.append(alternative - original)
    for tokens in (1, 40, 10_000):
        found = variant_nats(model, domain, table, reference, window, "32-true", tokens)
        assert found == pytest.approx(expected, abs=1e-4)

    monkeypatch.setattr(evaluation, "ROWS", 7)
    inner, rows = model.token_nats, []
    monkeypatch.setattr(model, "token_nats", lambda *given: rows.append(len(given[0])) or inner(*given))
    assert variant_nats(model, domain, table, reference, window, "32-true", 10_000) == pytest.approx(expected, abs=1e-4)
    assert max(rows) == 7

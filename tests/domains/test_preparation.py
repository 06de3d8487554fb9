"""The preparation benchmark: its synthetic data and the rows of its measurements."""

from bearings.benchmarks import preparation
from bearings.domains import sequences


def test_synthetic_genome(tmp_path):
    path = tmp_path / "genome.fa"
    preparation.write_genome(path, 200_000)
    tally, sizes, unknown = sequences.Tally(), {}, 0
    for record, codes in sequences.read([path], tally):
        sizes[record.name] = sizes.get(record.name, 0) + len(codes)
        unknown += int((codes == sequences.N).sum())
    assert sizes == {"train": 160_000, "valid": 20_000, "test": 20_000}
    assert unknown == 2_000
    assert 80_000 < tally.soft_masked < 120_000
    assert max(map(len, path.read_text().splitlines())) == preparation.LINE


def test_each_measurement_returns_a_row(tmp_path):
    path, pages = tmp_path / "genome.fa", tmp_path / "pages.txt"
    preparation.write_genome(path, 200_000)
    preparation.write_pages(pages, 2_000)
    for row, what, amount in (
        (preparation.genome(path, "kmer6", True), "genome kmer6, soft_mask", 0.2),
        (preparation.isolated(preparation.text, pages, "line", None, 1), "text train", pages.stat().st_size / 1e6),
    ):
        assert row["what"] == what
        assert float(row["amount"]) == round(amount, 5)
        assert float(row["rate"]) > 0
    assert float(row["share_of_encode_batch"]) > 0
    assert row["peak_mib"] > 10

"""The benchmark of preparation: what it writes is what it says, and each measurement gives a row."""

from bearings.benchmarks import preparation
from bearings.domains import sequences


def test_a_synthetic_genome_has_its_size_repeats_and_runs_of_n(tmp_path):
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


def test_each_measurement_is_a_row(tmp_path):
    path, pages = tmp_path / "genome.fa", tmp_path / "pages.txt"
    preparation.write_genome(path, 200_000)
    preparation.write_pages(pages, 2_000)
    for row, what, amount in (
        (preparation.genome(path, "kmer6", True), "genome kmer6, soft_mask", 0.2),
        (preparation.in_new_process(preparation.text, pages, "line", None, 1), "text train", pages.stat().st_size / 1e6),
    ):
        assert row["what"] == what
        assert float(row["amount"]) == round(amount, 5)
        assert float(row["rate"]) > 0
    assert float(row["share_of_encode_batch"]) > 0
    assert row["peak_mib"] > 10

"""Tables of variants and the sequence around them: columns, regions, strands, one-line errors."""

import gzip
import lzma

import numpy as np
import pytest
from conftest import DATA

from bearings.core.errors import UserError
from bearings.domains.sequences import LETTERS
from bearings.domains.variants import Reference, read_table
from bearings.reporting.variants import BRCA1, auroc

FOLDER = DATA / "evaluation" / "variant-effect"
FINDLAY = FOLDER / "brca1_sge_findlay2018.tsv.gz"
ROWS = "chrom\tpos\tref\talt\tlabel\tconsequence\nchr1\t3\tG\tT\t1\tmissense\nchr1\t3\tg\tA\t0\t.\n"


def table(tmp_path, text=ROWS):
    (tmp_path / "mine.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return read_table(tmp_path / "mine.tsv.gz")


def test_columns_of_a_table(tmp_path):
    found = table(tmp_path)
    assert (found.name, found.names) == ("mine", ["chr1:3:G>T", "chr1:3:G>A"])
    assert found.labels.tolist() == [True, False]
    assert found.groups.tolist() == ["missense", "none given"]
    assert table(tmp_path, "\ufeff" + ROWS).names == found.names  # as spreadsheets write it
    classes = "chrom\tpos_grch38\tref\talt\tclass\tconsequence\tcadd\tphylop\nchr1\t3\tG\tT\tLOF\tx\t1.5\t"
    for missing in ("NA", "nan", "inf"):
        found = table(tmp_path, f"{classes}{missing}\n")
        assert (found.labels.tolist(), found.groups.tolist()) == ([True], ["all variants"])
        assert {name: values.tolist() for name, values in found.others.items()} == {"cadd": [1.5]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("label", "effect", "has no column label: give a table, separated by tabs, with the columns chrom, pos"),
        ("G\tT", "GA\tT", "row 1: GA>T is not a change of one base: remove the row"),
        ("G\tT", "G\tG", "row 1: G>G is not a change of one base"),
        ("3\tG", "-3\tG", "row 1: chr1:-3 is not a position"),
        ("\t1\tm", "\tyes\tm", "row 1: label 'yes' is not 0 or 1"),
        ("\tmissense", "", "row 1: it has more or fewer cells than the header"),
        ("g\tA", "g\tT", "contains chr1:3:G>T twice"),
        (ROWS[5:], "", "contains no variants"),
    ],
)
def test_damaged_tables_give_one_line(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        table(tmp_path, ROWS.replace(old, new, 1))
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(ROWS.encode())[:-12])
    (tmp_path / "damaged.tsv.xz").write_bytes(lzma.compress(ROWS.encode())[:6] + bytes(60))
    for name in ("cut.tsv.gz", "damaged.tsv.xz", "none.tsv"):
        with pytest.raises(UserError, match=f"{name} (cannot be read|does not exist).*: give a table"):
            read_table(tmp_path / name)


def letters(window):
    return "".join(LETTERS[code] for code in window[0]), window[1]


def test_windows_of_chromosomes_and_regions(tmp_path):
    variants = table(tmp_path)
    (tmp_path / "genome.fa").write_text(">chr2\nAAAA\n>chr1\nACGTNACGT\n")
    found = Reference([tmp_path / "genome.fa"], [variants], 4)
    assert letters(found.window("chr1", 2, 4)) == ("ACGT", 2)
    assert letters(found.window("chr1", 2, 3)) == ("CGT", 1)
    assert letters(found.window("chr1", 2, 6)) == ("ACGTN", 2)  # fewer at the end of a sequence
    (tmp_path / "genome.fa").write_text(">chr1:2-1,000\nCGTA\n")
    assert letters(Reference([tmp_path / "genome.fa"], [variants], 4).window("chr1", 2, 6)) == ("CGTA", 1)
    (tmp_path / "genome.fa").write_text(">chr2:,-5\nAAAA\n>chr1\nACGTNACGT\n")  # a name, not a place
    assert letters(Reference([tmp_path / "genome.fa"], [variants], 4).window("chr1", 2, 3)) == ("CGT", 1)


def test_windows_are_parts_of_the_whole_chromosome(tmp_path):
    """Odd windows of the largest size, around the outermost variants of several tables, and where a region begins."""
    sequence = "".join(np.random.default_rng(0).choice([*"ACGT"], 60))
    places, tables = ((20, 31), (5, 30, 54)), []
    for here in places:
        rows = [f"chr1\t{at + 1}\t{sequence[at]}\t{'CA'[sequence[at] == 'C']}\t1\n" for at in here]
        tables.append(table(tmp_path, "chrom\tpos\tref\talt\tlabel\n" + "".join(rows)))
    for regions in (((0, 60),), ((0, 31), (31, 60))):
        text = [f">chr1:{begin + 1}-{end}\n{sequence[begin:end]}\n" for begin, end in regions]
        (tmp_path / "genome.fa").write_text("".join(text))
        reference = Reference([tmp_path / "genome.fa"], tables, 2)
        for at in (5, 20, 30, 31, 54):
            begin, end = next(each for each in regions if at < each[1])
            first = max(begin, at - 2)
            assert letters(reference.window("chr1", at, 5)) == (sequence[first : min(end, at + 3)], at - first)


def test_a_genome_that_does_not_fit_gives_one_line(tmp_path):
    variants = table(tmp_path)
    (tmp_path / "genome.fa").write_text(">chr1\nAACTT\n")
    with pytest.raises(UserError, match=r"the base at chr1:3 is C, but mine has chr1:3:G>T: give the assembly"):
        Reference([tmp_path / "genome.fa"], [variants], 4)
    (tmp_path / "genome.fa").write_text(">1\nAAGTT\n")
    with pytest.raises(UserError, match=r"chr1:3:G>T is in none of its sequences: .*give its chromosome"):
        Reference([tmp_path / "genome.fa"], [variants], 4)


@pytest.mark.data(FINDLAY)
def test_published_scores_of_other_methods_on_brca1():
    found = read_table(FINDLAY)
    assert (len(found.names), int(found.labels.sum()), found.source) == (3893, 823, BRCA1)
    assert round(auroc(found.others["cadd"], found.labels)[0], 3) == 0.804
    assert round(auroc(found.others["phylop"], found.labels)[0], 3) == 0.781
    reference = Reference([FOLDER], [found], 8)  # refuses other alleles, on either strand
    assert len(np.unique([len(reference.window("chr17", at, 8)[0]) for at in found.positions[:100]])) == 1

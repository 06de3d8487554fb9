"""Whole texts: packed files are read, and the licence of Project Gutenberg is left out."""

import gzip

import pytest
from conftest import DATA

from bearings.core.errors import UserError
from bearings.domains.books import plain_copies, without_licence

BOOKS = DATA / "evaluation" / "books"
HEADER = b"The Project Gutenberg EBook of Emma\r\n\r\n*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***\r\n"
FOOTER = b"*** END OF THE PROJECT GUTENBERG EBOOK EMMA ***\r\n\r\nLicence\r\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (HEADER + b"\r\nEmma\r\n" + FOOTER, b"\r\nEmma\r\n"),
        (b"***START OF THIS EBOOK***\nEmma\n***END OF THIS EBOOK***\n", b"Emma\n"),
        (b"Emma\n*** a star\nsaid *** END OF it\n", b"Emma\n*** a star\nsaid *** END OF it\n"),
        (b"Emma\n" + FOOTER, b"Emma\n"),
    ],
)
def test_only_the_book_remains(given, kept):
    assert without_licence(given) == kept


def test_files_and_folders_become_plain_texts(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt.gz").write_bytes(gzip.compress(HEADER + b"one\n\ntwo\n" + FOOTER))
    (tmp_path / "books" / "b.txt").write_bytes(b"three\n")
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "four"}\n{"text": "five"}\n')
    (tmp_path / "out").mkdir()
    copies = plain_copies([tmp_path / "books", tmp_path / "c.jsonl"], tmp_path / "out")
    assert [copy.read_bytes() for copy in copies] == [b"one\n\ntwo\n", b"three\n", b"four", b"five"]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="contains no text files: give a folder of"):
        plain_copies([tmp_path / "none"], tmp_path / "out")
    (tmp_path / "licence.txt").write_bytes(HEADER + FOOTER)
    with pytest.raises(UserError, match=r"licence\.txt contains only the header and licence of Project Gutenberg"):
        plain_copies([tmp_path / "licence.txt"], tmp_path / "out")


@pytest.mark.data(BOOKS)
def test_complete_novels_lose_only_the_licence(tmp_path):
    texts = {copy.name: copy.read_bytes() for copy in plain_copies([BOOKS], tmp_path)}
    assert len(texts) == 9
    assert [name for name, text in texts.items() if b"Literary Archive Foundation" in text] == []
    women, emma, *_ = texts.values()
    assert len(emma.split()) == 157_443  # without a header
    assert 185_000 < len(women.split()) < 189_079

"""Each kind of dirty row, and what becomes of the rows beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torso.data.news import rows as module
from torso.data.news.rows import Row, read_rows
from torso.errors import DataError

FIRST = ",id,title,publication,author,date,year,month,url,content"
SECOND = "date,year,month,day,author,title,article,url,section,publication"


def line(text: str, number: int = 1) -> str:
    return f'{number},{number},"A, title",Paper,Me,2016-01-31,2016.0,1.0,,{text}'


def read(path: Path, content: str | bytes) -> list[Row]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(path))


def found(path: Path, *lines: str | bytes) -> list[str]:
    """Texts of usable rows, and reasons, in order."""
    raw = b"\n".join(one if isinstance(one, bytes) else one.encode() for one in (FIRST, *lines)) + b"\n"
    return [row.reason or row.text for row in read(path, raw)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "articles.csv"


def test_both_layouts_are_known_by_their_header_in_any_order(path: Path) -> None:
    assert found(path, line("one")) == ["one"]
    second = f"{SECOND}\n2016-01-31,2016,1.0,31,Me,Title,two,http://x,news,Paper\n"
    assert [row.text for row in read(path, second)] == ["two"]
    assert [row.text for row in read(path, "content,year\nthree,2016\n")] == ["three"]


@pytest.mark.parametrize("header", ["a,b,c", "content,article", "", "\n"])
def test_another_header_is_refused(path: Path, header: str) -> None:
    with pytest.raises(DataError, match=r"articles\.csv"):
        read(path, header)


def test_quoted_line_breaks_commas_and_quotes_belong_to_the_text(path: Path) -> None:
    assert found(path, line('"He said ""no"",\nand\r\nleft"'), line("next")) == ['He said "no",\nand\r\nleft', "next"]


def test_line_ends_of_windows_a_byte_order_mark_and_no_last_line_end_are_fine(path: Path) -> None:
    text = f"\ufeff{FIRST}\r\n{line('one')}\r\n{line('two')}"
    assert [row.text for row in read(path, text)] == ["one", "two"]


def test_a_field_of_five_megabytes_is_read(path: Path) -> None:
    assert found(path, line('"' + "word\n" * 1_000_000 + '"'), line("next"))[1] == "next"


@pytest.mark.parametrize("bad", ["1,2,3", line("text") + ",more", "free text"])
def test_a_row_of_another_width_is_told_and_left_out(path: Path, bad: str) -> None:
    assert found(path, line("one"), bad, line("two")) == ["one", "wrong width", "two"]


def test_bytes_that_are_not_utf8_spoil_their_own_row_only(path: Path) -> None:
    assert found(path, line("one"), line("caf").encode() + b"\xe9", line("two")) == ["one", "undecodable", "two"]


def test_bytes_that_are_not_utf8_in_another_column_do_not_matter(path: Path) -> None:
    assert found(path, line("one").encode().replace(b"Me", b"M\xe9")) == ["one"]


def test_a_blank_line_is_told(path: Path) -> None:
    assert found(path, line("one"), "", line("two")) == ["one", "blank line", "two"]


def test_a_carriage_return_within_an_unquoted_row_is_malformed(path: Path) -> None:
    assert found(path, line("one"), line("a\rb"), line("two"))[-1] == "two"


def test_a_null_byte_stays_in_the_text_for_cleaning(path: Path) -> None:
    assert found(path, line("a\0b")) == ["a\0b"]


def test_a_quote_that_is_never_closed_costs_its_own_row_only(path: Path) -> None:
    rows = [line('"open'), *(line('"closed, all of it"', number) for number in range(2, 8)), line("last")]
    assert found(path, *rows) == ["wrong width", *["closed, all of it"] * 6, "last"]


def test_the_last_row_cut_off_within_its_text_is_left_out(path: Path) -> None:
    assert found(path, line("one"), line('"the beginning of')) == ["one", "cut off"]


def test_lines_of_a_row_that_was_given_up_are_neither_counted_again_nor_taken_for_articles(path: Path) -> None:
    broken = '1,2,"a text\nwith a,b,c,d,e,f,g,h,i line of ten\nand more",x'
    assert found(path, line("one"), broken, line("two")) == ["one", "wrong width", "two"]


def test_a_field_longer_than_any_article_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FIELD", 1000)
    long = line('"' + "word " * 400 + '"')
    assert found(path, line("one"), long, line("two")) == ["one", "field too long", "two"]


def test_reading_goes_on_from_the_end_of_any_row_that_says_so(path: Path) -> None:
    broken = '1,2,"a text\nwith a line\nand more",x'
    found(path, line("one"), broken, line('"two\nlines"'), line('"open'), line("three"), line("four"))
    everything = list(read_rows(path))
    assert sum(row.resumable for row in everything) > 3
    for place, row in enumerate(everything):
        if row.resumable:
            assert list(read_rows(path, row.end, row.number)) == everything[place + 1 :]

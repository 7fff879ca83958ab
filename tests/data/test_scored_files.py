from __future__ import annotations

import json
from pathlib import Path

import pytest

from torso.data.alignment import align, first_shift, shifted_run
from torso.data.scored_files import Entry, read_mrs, read_outputs, read_references
from torso.errors import DataError

A, B = "name[A], food[Thai]", "name[B]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def texts(entries: list[Entry]) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(entry.mr, entry.texts) for entry in entries]


CONTENTS = {
    "refs.csv": f'mr,ref\n"{A}",A is Thai.\n"{A}","Thai food, at A."\n{B},B.\n',
    "other.csv": f'\ufeffref,note,MR\r\nA is Thai.,x,"{A}"\r\n\r\n"Thai food, at A.",,"{A}"\r\nB.,,{B}\r\n',
    "refs.tsv": f"human_ref\tMeaning_Representation\nA is Thai.\t{A}\nThai food, at A.\t{A}\nB.\t{B}\n",
    "refs.jsonl": f'{{"mr": "{A}", "references": ["A is Thai.", "Thai food, at A."]}}\n\n'
    f'{{"mr": "{B}", "ref": "B."}}\n',
}


@pytest.mark.parametrize("name", CONTENTS)
def test_references_read_the_same_from_every_format_that_has_inputs(folder: Path, name: str) -> None:
    entries = read_references(write(folder, name, CONTENTS[name]))
    assert texts(entries) == [(A, ("A is Thai.", "Thai food, at A.")), (B, ("B.",))]


def test_plain_references_lie_in_groups_parted_by_blank_lines(folder: Path) -> None:
    path = write(folder, "refs.txt", "A is Thai. \r\nThai food, at A.\r\n\r\n\r\nB.\r\n\r\n")
    assert texts(read_references(path)) == [(None, ("A is Thai.", "Thai food, at A.")), (None, ("B.",))]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("out.txt", "A.\n\nB.\n", [(None, ("A.",)), (None, ("",)), (None, ("B.",))]),
        ("out.txt", "\n \n", [(None, ("",)), (None, ("",))]),
        ("out.csv", 'output\n""\nA.\n\n" "\n', [(None, ("",)), (None, ("A.",)), (None, ("",))]),
        ("out.csv", "id,output\n1,A.\n,\n", [(None, ("A.",))]),
        ("out.jsonl", '{"output": "A", "mr": null}\n', [(None, ("A",))]),
        ("out.txt", "A.\nB.", [(None, ("A.",)), (None, ("B.",))]),
        ("out.csv", f"output,mr\nA.,{B}\n", [(B, ("A.",))]),
        ("out.csv", f"mr,ref\n{B},\n", [(B, ("",))]),
        ("out.tsv", "prediction\nÂ£5 Ã©\n", [(None, ("£5 é",))]),
        ("out.jsonl", f'{{"output": "A\\nB", "mr": "{B}", "references": ["x"]}}\n', [(B, ("A B",))]),
    ],
)
def test_outputs_are_one_an_input_and_may_be_empty(
    folder: Path, name: str, text: str, expected: list[tuple[str | None, tuple[str, ...]]]
) -> None:
    assert texts(read_outputs(write(folder, name, text))) == expected


def test_inputs_may_be_lines_or_a_column(folder: Path) -> None:
    for path in (write(folder, "mrs.txt", f"{A}\n{B}\n"), write(folder, "refs.csv", CONTENTS["refs.csv"])):
        assert [entry.mr for entry in read_mrs(path)] == [A, B]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("refs.txt", "", "refs.txt is empty"),
        ("refs.txt", " \n\n", "refs.txt is empty"),
        ("refs.txt", "ok\ncaf\xe9\n".encode("latin-1"), "refs.txt, line 2: the byte 0xe9 is not UTF-8"),
        ("refs.txt", "ok\n".encode("utf-16"), "refs.txt, line 1: the byte 0xff is not UTF-8"),
        ("refs.txt", "one\nok\n".encode("utf-16-le"), "refs.txt, line 1: a byte is zero"),
        ("refs.csv", b"mr,ref\na,b\nc,\x00d\n", "refs.csv, line 3: a byte is zero"),
        ("refs.txt", "mr,ref\na,b\n", "begins with a table's header"),
        ("refs.csv", "a,b\nc,d\n", "no column of 'a', 'b' is named ref or"),
        ("refs.csv", "ref,ref\nc,d\n", "two columns are named 'ref'"),
        ("refs.csv", "mr,ref\na,b,c\n", "line 2: 3 columns where the header has 2"),
        ("refs.csv", 'mr,ref\na,"b\n', "line 2: not valid CSV"),
        ("refs.csv", "mr,ref\na,\n", "line 2: the reference is empty"),
        ("refs.jsonl", '{"mr": "a", "ref": "b"}\n{"mr"\n', "line 2: not JSON"),
        ("refs.jsonl", "[1]\n", "line 1: '\\[1\\]' is not an object"),
        ("refs.jsonl", '{"mr": "a"}\n', "line 1: no key is named ref or"),
        ("refs.jsonl", '{"mr": "a", "references": []}\n', "line 1: the reference is empty"),
        ("refs.jsonl", '{"mr": "a", "references": ["b", 3]}\n', "line 1: references is 3, not a string"),
        ("refs.jsonl", '{"mr": "a", "ref": null}\n', "line 1: ref is null, not a string"),
        ("refs.jsonl", '{"mr": ["a"], "ref": "b"}\n', 'line 1: mr is \\["a"\\], not a string'),
        ("refs.jsonl", '{"ref": "\\ud800"}\n', "line 1: half of a surrogate pair"),
    ],
)
def test_a_broken_file_of_references_is_named_with_its_line(
    folder: Path, name: str, text: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_references(write(folder, name, text))


def test_several_outputs_for_an_input_are_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="line 1: 2 outputs where one was expected"):
        read_outputs(write(folder, "out.jsonl", json.dumps({"output": ["a", "b"]})))


@pytest.mark.parametrize(("name", "head"), [("out.txt", ""), ("out.csv", "output\n"), ("out.tsv", "output\n")])
def test_what_is_too_long_for_one_text_is_refused(folder: Path, name: str, head: str) -> None:
    with pytest.raises(DataError, match=r"line .: a text of 100001 characters, 100000 at most"):
        read_outputs(write(folder, name, f"{head}{'x' * 100_001}\n"))


def groups(*texts: tuple[str, ...], mrs: tuple[str, ...] | None = None) -> list[Entry]:
    return [Entry(f"refs, {i + 1}", mrs[i] if mrs else None, references) for i, references in enumerate(texts)]


def outputs(*texts: str, mrs: tuple[str, ...] | None = None) -> list[Entry]:
    return [Entry(f"out, {i + 1}", mrs[i] if mrs else None, (text,)) for i, text in enumerate(texts)]


THREE = groups(("Aromi is cheap.", "Cheap: Aromi."), ("Zizzi is a pub.",), ("Cotto is near the river.",))


def test_by_position_with_the_inputs_of_whoever_has_them() -> None:
    aligned = align(groups(("x", "y"), ("z",)), outputs("1", "2", mrs=("a", "b")))
    assert (aligned.outputs, aligned.references, aligned.mrs) == (("1", "2"), (("x", "y"), ("z",)), ("a", "b"))
    assert align(groups(("x",)), outputs("1")).mrs is None
    assert align(groups(("x",)), outputs("1"), [Entry("mrs, 1", "a", ())]).mrs == ("a",)


def test_a_file_without_blank_lines_has_a_reference_a_line() -> None:
    assert align(groups(("x", "y", "z")), outputs("1", "2", "3")).references == (("x",), ("y",), ("z",))
    assert align(groups(("x", "y", "z")), outputs("1")).references == (("x", "y", "z"),)


def test_inputs_that_come_back_later_are_one_where_the_numbers_say_so() -> None:
    scattered = groups(("x",), ("y",), ("z",), mrs=("a", "b", "a"))
    assert align(scattered, outputs("1", "2")).references == (("x", "z"), ("y",))
    assert align(scattered, outputs("1", "2", "3")).references == (("x",), ("y",), ("z",))


def test_too_few_and_too_many_outputs_name_the_first_mismatch() -> None:
    with pytest.raises(
        DataError, match=r"2 outputs, but references of 3 inputs.*number 2, 'Zizzi is a pub.' \(refs, 2\)"
    ):
        align(THREE, outputs("Aromi is a cheap place.", "Cotto lies near the river."))
    with pytest.raises(DataError, match=r"4 outputs, but.*without references seems to be number 2, 'Fish.' \(out, 2\)"):
        align(THREE, outputs("Aromi is cheap.", "Fish.", "Zizzi is a pub.", "Cotto is near the river."))
    with pytest.raises(DataError, match=r"number 3, 'Cotto is near the river.'"):
        align(THREE, outputs("Aromi is cheap.", "Zizzi is a pub."))


def test_other_inputs_are_named_and_another_order_is_told() -> None:
    mrs = ("name[A]", "name[B]")
    assert align(groups(("x",), ("y",), mrs=mrs), outputs("1", "2", mrs=("NAME[a]", "name[B] ")))
    with pytest.raises(
        DataError, match=r"input 1 differs: 'name\[A\]' \(refs, 1\), but 'name\[B\]' \(out, 1\).*one order"
    ):
        align(groups(("x",), ("y",), mrs=mrs), outputs("1", "2", mrs=mrs[::-1]))
    with pytest.raises(DataError, match=r"input 2 differs.*There are 2 on one side and 3 on the other"):
        align(groups(("x",), ("y",), mrs=mrs), outputs("1", "2", "3", mrs=("name[A]", "name[C]", "name[B]")))
    with pytest.raises(DataError, match="1 inputs, but 2 outputs"):
        align(groups(("x",), ("y",)), outputs("1", "2"), [Entry("mrs, 1", "a", ())])


def test_references_that_lie_the_other_way_round_are_told() -> None:
    with pytest.raises(DataError, match=r"2 inputs, each with 3.*the other way round"):
        align(groups(("a", "b", "c"), ("d", "e", "f")), outputs("1", "2", "3"))


def test_the_shift_is_found_where_words_agree_best() -> None:
    words = [f"w{i} x" for i in range(50)]
    references = [[text] for text in words]
    for missing in (0, 17, 49):
        assert first_shift(words[:missing] + words[missing + 1 :], references) == missing
    assert first_shift([*words[:20], "?", "?", *words[20:]], references) == 20


def test_a_line_that_is_missing_and_another_too_many_show_in_the_words() -> None:
    words = [f"w{i} x" for i in range(50)]
    references = [[text] for text in words]
    assert shifted_run(words, references) is None
    assert shifted_run(["x"] * 50, references) is None
    assert shifted_run([*words[:20], *words[21:], ""], references) == (20, 48)
    assert shifted_run([*words[:20], "?", *words[20:-1]], references) == (21, 49)
    assert shifted_run([*words[:20], *words[21:40], "?", *words[40:]], references) == (20, 38)
    assert shifted_run([*words[:20], *words[21:24], "?", *words[24:]], references) is None  # too few to be sure
    assert shifted_run([], []) is None

from __future__ import annotations

import csv
import re
import zipfile
from pathlib import Path

import pytest

from torso.data.corpus import Corpus
from torso.data.e2e import FILES, load_e2e
from torso.data.sources import load
from torso.errors import DataError

HEADER = "mr,ref\n"
ROW = '"name[A], eatType[pub]",A is a pub.\n'


@pytest.fixture(scope="module")
def official(shared_data: Path) -> Corpus:
    return load(f"e2e:{shared_data / 'e2e' / 'e2e-dataset.zip'}")


def write(folder: Path, text: str | bytes, name: str = "trainset.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("split", "rows", "mrs"), [("train", 42_061, 4_862), ("dev", 4_672, 547), ("test", 4_693, 630)]
)
def test_the_official_zip_has_its_known_rows_and_mrs(official: Corpus, split: str, rows: int, mrs: int) -> None:
    groups = official.split(split)
    assert len(groups) == mrs
    assert sum(len(group.references) for group in groups) == rows


def test_the_official_splits_share_no_mr(official: Corpus) -> None:
    sets = [{group.mr for group in official.split(split)} for split in ("train", "dev", "test")]
    assert len(set.union(*sets)) == sum(map(len, sets))


def test_references_per_mr_are_as_published(official: Corpus) -> None:
    counts = {s: [len(group.references) for group in official.split(s)] for s in ("dev", "test")}
    assert (min(counts["test"]), max(counts["test"])) == (1, 45)
    assert (min(counts["dev"]), max(counts["dev"])) == (2, 43)


def test_the_unpacked_folder_and_the_one_around_it_equal_the_zip(
    official: Corpus, shared_data: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(shared_data / "e2e" / "e2e-dataset.zip") as archive:
        archive.extractall(tmp_path)
    folders = [tmp_path, tmp_path / "e2e-dataset"]
    assert {load_e2e(str(folder)).fingerprint for folder in folders} == {official.fingerprint}


def test_columns_are_found_by_their_names_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, "id,ref,MR\n7,A is a pub.,name[A]\n")
    (group,) = load_e2e(str(tmp_path)).split("train")
    assert (group.mr, group.prompt, group.references) == ("name[A]", "name : A", ("A is a pub.",))


def test_a_byte_order_mark_windows_line_ends_and_quoted_line_breaks_are_fine(tmp_path: Path) -> None:
    write(tmp_path, b'\xef\xbb\xbfmr,ref\r\n\r\nname[A],"A is\r\na ""pub"".  Go "\r\nname[A],B\r\n')
    corpus = load_e2e(str(tmp_path))
    assert corpus.split("train")[0].references == ('A is a "pub". Go', "B")
    assert "1 empty rows skipped" in corpus.notes
    assert "1 cells with superfluous white space tidied" in corpus.notes


def test_the_encoding_faults_are_mended_and_counted(tmp_path: Path) -> None:
    write(tmp_path, HEADER + '"name[CafÃ© A], priceRange[Ł20-25]","Cafã© A: Â£20, Â£30, or £40."\n')
    corpus = load_e2e(str(tmp_path))
    (group,) = corpus.split("train")
    assert group.mr == "name[Café A], priceRange[£20-25]"
    assert group.references == ("Café A: £20, £30, or £40.",)
    counted = {note.split(" ", 1)[1]: int(note.split(" ", 1)[0]) for note in corpus.notes}
    assert counted == {
        "encoding faults mended (Ã© to é)": 1,
        "encoding faults mended (Ł to £)": 1,
        "encoding faults mended (ã© to é)": 1,
        "encoding faults mended (Â£ to £)": 2,
    }


def test_fields_beyond_csvs_own_limit_are_read_and_the_limit_is_left_alone(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    write(tmp_path, f"{HEADER}name[A],{'x' * (before + 1)}\n")
    assert len(load_e2e(str(tmp_path)).split("train")[0].references[0]) == before + 1
    assert csv.field_size_limit() == before


def test_a_folder_may_hold_only_some_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, HEADER + ROW, "devset.csv")
    corpus = load_e2e(str(tmp_path))
    assert len(corpus.split("dev")) == 1
    with pytest.raises(DataError, match=r"has no train examples \(splits that it has: dev\)"):
        corpus.split("train")


def test_csv_files_are_taken_by_name(tmp_path: Path) -> None:
    paths = [write(tmp_path, HEADER + ROW, name) for name in ("train-a.csv", "Dev_b.csv")]
    corpus = load_e2e(",".join(map(str, paths)))
    assert set(corpus.splits) == {"train", "dev"}
    (alone,) = [write(tmp_path, HEADER + ROW, "mine.csv")]
    assert set(load_e2e(str(alone)).splits) == {"train"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mr,text\nname[A],B\n",
            "line 1: expected exactly one column 'ref' in the header, found 'mr', 'text'",
        ),
        ("mr,ref,ref\nname[A],B,C\n", "line 1: expected exactly one column 'ref'"),
        ("", "line 1: expected exactly one column 'mr' in the header, found nothing"),
        (HEADER, "has no rows"),
        (HEADER + "\n , \n", "has no rows"),
        (HEADER + ROW + "name[A], eatType[pub],B\n", "line 3: 3 columns where the header has 2"),
        (HEADER + 'name[A],"one\ntwo"\nname[A]\n', "line 4: 1 columns where the header has 2"),
        (HEADER + ROW + "name[A],\n", "line 3: the column 'ref' is empty"),
        (HEADER + ",B\n", "line 2: the column 'mr' is empty"),
        (HEADER + ROW + "Blue Spice,B\n", "line 3: the meaning representation 'Blue Spice' is malformed"),
        (HEADER + 'name[A],"never closed\n', "line 2: not valid CSV"),
        (HEADER.encode() + b"name[A],\xa320\n", "line 2: the byte 0xa3 is not UTF-8"),
    ],
)
def test_a_broken_file_is_one_line_with_file_and_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load_e2e(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_path_a_foreign_folder_and_a_damaged_zip_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load_e2e(str(tmp_path / "nowhere.zip"))
    with pytest.raises(DataError, match=rf"holds none of {', '.join(FILES.values())}"):
        load_e2e(str(tmp_path))
    with pytest.raises(DataError, match=r"damaged\.zip cannot be read"):
        load_e2e(str(write(tmp_path, b"PK\x03\x04nothing", "damaged.zip")))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(DataError, match=r"other\.zip holds none of"):
        load_e2e(str(tmp_path / "other.zip"))


def test_files_whose_split_is_unclear_are_refused(tmp_path: Path) -> None:
    train, second, odd = (write(tmp_path, HEADER + ROW, n) for n in ("train.csv", "train2.csv", "odd.csv"))
    with pytest.raises(DataError, match="would be the train split"):
        load_e2e(f"{train},{second}")
    with pytest.raises(DataError, match=re.escape("'odd.csv' does not say which split")):
        load_e2e(f"{train},{odd}")

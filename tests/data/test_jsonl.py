from __future__ import annotations

import json
from pathlib import Path

import pytest

from torso.data.corpus import Corpus, Group
from torso.data.sources import load
from torso.errors import DataError


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def groups_of(corpus: Corpus) -> dict[str, set[Group]]:
    return {split: set(groups) for split, groups in corpus.splits.items()}


def test_a_folder_gives_its_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", {"prompt": "q", "completion": "a"}, "", {"prompt": "q", "completion": "b"})
    write(tmp_path / "test.jsonl", {"text": "free \u2028 text"}, {"text": "more"})
    corpus = load(f"jsonl:{tmp_path}")
    assert corpus.split("train") == (Group("q", "q", ("a", "b")),)
    assert corpus.split("test") == (Group("", "", ("free \u2028 text",)), Group("", "", ("more",)))


def test_a_single_file_is_split_by_prompt_about_90_5_5(tmp_path: Path) -> None:
    lines = [{"prompt": f"q{i % 1000}", "completion": f"a{i}"} for i in range(2000)]
    corpus = load(f"jsonl:{write(tmp_path / 'all.jsonl', *lines)}")
    prompts = {split: {group.prompt for group in groups} for split, groups in corpus.splits.items()}
    assert sum(map(len, prompts.values())) == len(set.union(*prompts.values())) == 1000
    assert sum(len(group.references) for groups in corpus.splits.values() for group in groups) == 2000
    assert [round(len(prompts[split]) / 10) for split in ("train", "dev", "test")] == pytest.approx([90, 5, 5], abs=2)


def test_a_line_stays_in_its_split_when_others_are_added(tmp_path: Path) -> None:
    lines = [{"text": f"text {i}"} for i in range(200)]
    few = groups_of(load(f"jsonl:{write(tmp_path / 'few.jsonl', *lines[:100])}"))
    many = groups_of(load(f"jsonl:{write(tmp_path / 'many.jsonl', *reversed(lines))}"))
    assert all(few[split] <= many[split] for split in few)


def test_a_small_file_may_leave_a_split_empty_and_says_so(tmp_path: Path) -> None:
    corpus = load(f"jsonl:{write(tmp_path / 'one.jsonl', {'text': 'alone'})}")
    (held,) = corpus.splits
    for split in {"train", "dev", "test"} - {held}:
        with pytest.raises(DataError, match=f"has no {split} examples"):
            corpus.split(split)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "is not an object"),
        ("{}", "the keys are none"),
        ('{"prompt": "a"}', "the keys are 'prompt'"),
        ('{"completion": "a"}', "the keys are 'completion'"),
        ('{"text": "a", "completion": "b"}', "the keys are 'text', 'completion'"),
        ('{"prompt": 3, "completion": "b"}', "prompt is 3, not a string"),
        ('{"prompt": "a", "completion": null}', "completion is null, not a string"),
        ('{"prompt": "a", "completion": "  "}', "completion is empty"),
        ('{"text": ""}', "text is empty"),
        (r'{"text": "a\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": ' + "1" * 5000 + "}", "a number of too many digits"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "mine.jsonl", {"text": "good"}, "", line)
    with pytest.raises(DataError) as caught:
        load(f"jsonl:{path}")
    assert f"{path}, line 3: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_missing_and_empty_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load(f"jsonl:{tmp_path / 'nowhere.jsonl'}")
    with pytest.raises(DataError, match="has no lines"):
        load(f"jsonl:{write(tmp_path / 'empty.jsonl')}")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"holds none of train.jsonl, dev.jsonl, test.jsonl"):
        load(f"jsonl:{tmp_path / 'folder'}")


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine.jsonl", {"text": "alone"})
    assert len(load("jsonl:~/mine.jsonl").splits) == 1

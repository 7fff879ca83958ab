"""From CSV files to shards: the same bytes whatever happens on the way."""

from __future__ import annotations

import csv
import dataclasses
import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Reference

from torso.data.corpus import MadeWith
from torso.data.news import prepare as module
from torso.data.news.cleaning import clean
from torso.data.news.manifest import Manifest
from torso.data.news.packed import load_news
from torso.data.news.prepare import NewsConfig, prepare, report
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError, RunDirectoryError, StorageError

HEADER = ["", "id", "title", "publication", "author", "date", "year", "month", "url", "content"]
WORDS = ("the", "a", "pub", "near", "very", "long", "name", "B", "food", "cheap", "<b>good</b>", "&amp;", "café")


def quiet(done: int, total: int) -> None:
    pass


def text(number: int) -> str:
    return " ".join(WORDS[(number * i + i * i) % len(WORDS)] for i in range(3 + number % 40)) + f"\n{number % 50}"


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Two files of rows, some of them the same as others, and some of no use."""
    folder = tmp_path_factory.mktemp("articles")
    for name, numbers in (("one.csv", range(150)), ("two.csv", range(100, 260))):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            for n in numbers:
                writer.writerow([n, n, "T", "P", "", "2016-01-31", "2016.0", "1.0", "", "" if n % 37 == 5 else text(n)])
                if n % 41 == 7:
                    file.write('1,2,"a row of two columns\nand two lines"\n')
    return folder / "one.csv", folder / "two.csv"


@pytest.fixture(scope="module")
def config(
    articles: tuple[Path, ...], train_small: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> NewsConfig:
    tokenizer = train_small(tmp_path_factory.mktemp("tokenizer") / "small")
    return NewsConfig(inputs=articles, tokenizer=tokenizer, block_size=16, shard_tokens=1000, dev_share=0.1)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few rows, and the place noted after each."""
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)


@pytest.fixture(scope="module")
def whole(config: NewsConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared without a disturbance."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(config, folder, quiet)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def stream(folder: Path, split: str) -> list[int]:
    return [id for path in sorted(folder.glob(f"{split}-*.bin")) for id in np.fromfile(path, dtype="<u2").tolist()]


def expected(config: NewsConfig) -> list[str]:
    """Clean texts of the usable articles, once each, in order."""
    texts: dict[str, None] = {}
    for path in config.inputs:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                if len(row) == 10 and row[1] != "id" and row[9]:
                    texts.setdefault(clean(row[9]))
    return list(texts)


def test_shards_hold_each_article_once_between_end_tokens(config: NewsConfig, whole: Path) -> None:
    assert config.tokenizer is not None
    reference = Reference.from_file(str(config.tokenizer / "tokenizer.json"))
    end = reference.token_to_id("<|endoftext|>")
    parts = {split: stream(whole, split) for split in ("train", "dev")}
    found: list[list[int]] = []
    for ids in parts.values():
        assert ids[0] == ids[-1] == end
        ends = [place for place, id in enumerate(ids) if id == end]
        found += [ids[first + 1 : last] for first, last in itertools.pairwise(ends)]
    texts = [reference.encode(one).ids for one in expected(config)]
    assert sorted(found) == sorted(texts)
    train = [ids for ids in texts if ids in found[: Manifest.load(whole).splits["train"].articles]]
    assert train == found[: len(train)], "the order is that of the rows"
    assert 0.03 < Manifest.load(whole).splits["dev"].articles / len(texts) < 0.2


def test_the_index_says_where_each_article_begins(whole: Path) -> None:
    places = np.fromfile(whole / "train.index", dtype="<u8").tolist()
    ids = stream(whole, "train")
    assert len(places) == Manifest.load(whole).splits["train"].articles
    assert places == [place + 1 for place, id in enumerate(ids) if id == ids[0]][:-1]


def test_every_row_is_accounted_for(whole: Path, config: NewsConfig) -> None:
    rows = dict(Manifest.load(whole).rows)
    assert rows.pop("train") + rows.pop("dev") == len(expected(config))
    assert rows == {"empty": 8, "duplicate": rows["duplicate"], "wrong width": 8}
    assert "8 wrong width (one.csv, row 9; " in report(Manifest.load(whole))


@pytest.mark.slow
def test_the_number_of_workers_and_the_size_of_batches_change_no_byte(
    config: NewsConfig, whole: Path, tmp_path: Path, small_batches: None
) -> None:
    prepare(dataclasses.replace(config, workers=2), tmp_path, quiet)
    assert content(tmp_path) == content(whole)


class Stop(Exception):
    pass


def stopping(after: int) -> Callable[[int, int], None]:
    left = iter(range(after))

    def say(done: int, total: int) -> None:
        if next(left, None) is None:
            raise Stop

    return say


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_stopped_again_and_again_it_ends_with_the_same_bytes(config: NewsConfig, whole: Path, tmp_path: Path) -> None:
    """What was written after the place was noted is torn, or too much."""
    for after in (0, 1, 2, 1, 3):
        with pytest.raises(Stop):
            prepare(config, tmp_path, stopping(after))
        for path in (*tmp_path.glob("*.bin"), *tmp_path.glob("*.index"), tmp_path / "seen.digests"):
            with path.open("ab") as file:
                file.write(b"torn")
        (tmp_path / ".progress.json.tmp-1").write_text("torn")
        (tmp_path / ".tokenizer.tmp-1").mkdir()
    prepare(config, tmp_path, quiet)
    assert content(tmp_path) == content(whole)


@pytest.mark.slow
def test_killed_it_leaves_no_process_and_goes_on_to_the_same_bytes(
    config: NewsConfig, whole: Path, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from torso.cli.main import main
from torso.data.news import prepare
if __name__ == "__main__":
    prepare.BATCH_CHARACTERS, prepare.SAVE_EVERY_S = 2000, 0.0
    def kill(self):
        save(self)
        if self._progress.articles > 60:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
            print(children, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    save, prepare._Preparation._save = prepare._Preparation._save, kill
    main(sys.argv[1:])
"""
    (tmp_path / "killed.py").write_text(code)
    words = [*map(str, config.inputs), "--out", str(tmp_path / "out"), "--tokenizer", str(config.tokenizer)]
    words += ["--block-size", "16", "--dev-share", "0.1", "--workers", "2"]
    command = [sys.executable, str(tmp_path / "killed.py"), "prepare", "news", *words]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -9, killed.stderr
    workers = killed.stdout.split()
    assert len(workers) >= 2
    wait_until_gone(workers)
    done = subprocess.run([sys.executable, "-m", "torso", "prepare", "news", *words], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert stream(tmp_path / "out", "train") == stream(whole, "train")
    assert stream(tmp_path / "out", "dev") == stream(whole, "dev")


def wait_until_gone(pids: list[str]) -> None:
    for _ in range(100):
        if not any(is_running(pid) for pid in pids):
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(f"still running: {pids}")


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.usefixtures("small_batches")
def test_a_full_disk_is_told_and_the_same_command_goes_on(
    config: NewsConfig, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, left = os.fsync, iter(range(12))

    def full(descriptor: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        prepare(config, tmp_path, quiet)
    monkeypatch.setattr(os, "fsync", sync)
    prepare(config, tmp_path, quiet)
    assert content(tmp_path) == content(whole)


def test_another_request_for_the_same_folder_is_refused(config: NewsConfig, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="block_size: 16 there, 32 now"):
        prepare(dataclasses.replace(config, block_size=32), whole, quiet)
    (tmp_path / "mine").write_text("text")
    with pytest.raises(RunDirectoryError, match="is not empty"):
        prepare(config, tmp_path, quiet)
    (whole / "progress.json").write_text("left by a kill between the manifest and the end")
    assert prepare(config, whole, quiet) == Manifest.load(whole)
    assert not (whole / "progress.json").exists()


@pytest.mark.parametrize("name", ["train-00001.bin", "dev.index"])
def test_a_damaged_file_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    for path, data in content(whole).items():
        (tmp_path / path).write_bytes(data)
    raw = bytearray((tmp_path / name).read_bytes())
    raw[3] ^= 1
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=f"{name} has other content"):
        load_news(str(tmp_path))
    (tmp_path / name).write_bytes(raw[:-1])
    with pytest.raises(DataError, match=f"{name} has .* bytes, expected"):
        load_news(str(tmp_path))
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        load_news(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        load_news(str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(DataError, match="holds no prepared news"):
        load_news(str(tmp_path))


def test_rows_of_no_use_alone_are_an_error(config: NewsConfig, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(",".join(HEADER) + "\n1,2\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="no row holds an article"):
        prepare(dataclasses.replace(config, inputs=(path,)), tmp_path / "out", quiet)


@pytest.mark.slow
def test_a_vocabulary_of_a_given_size_is_learnt_and_used(config: NewsConfig, tmp_path: Path) -> None:
    both = [tmp_path / "a", tmp_path / "b"]
    for folder in both:
        folder.mkdir()
        prepare(dataclasses.replace(config, tokenizer=None, vocab_size=280), folder, quiet)
    tokenizer = Tokenizer(both[0] / "tokenizer")
    assert tokenizer.vocab_size == 280
    assert tokenizer.decode(stream(both[0], "train")).startswith(expected(config)[0])
    assert content(both[0]) == content(both[1])
    assert load_news(str(both[0])).tokenizer == MadeWith(tokenizer.fingerprint, 280, both[0] / "tokenizer")

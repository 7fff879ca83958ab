"""What preparing news costs: `python benchmarks/prepare_news.py --sample articles_sample.csv --scratch /tmp/scratch`.

Makes a CSV file of 600 MB and 143,000 rows out of the sample's sentences (the same bytes each time, with dirt). Then,
by turns, prepares it with `torso prepare news` and encodes the same cleaned articles with nothing but the `tokenizers`
library on all cores: `encode_batch`, and `encode_batch_fast`, which keeps no offsets. Prints seconds, CPU seconds and
peak memory (the sum of all processes' proportional set sizes) of each turn, and the ratios of the medians. The
library's time is that of its calls alone; Torso's is that of the whole command: start, reading, cleaning, hashing and
writing too.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from torso.data.news.normalising import Normalising
from torso.data.news.rows import read_rows
from torso.data.news.work import Recipe, articles_of

HEADER = ["", "id", "title", "publication", "author", "date", "year", "month", "url", "content"]
MEBIBYTE = 1 << 20
BARE_BATCH = 4 * MEBIBYTE
LONG_FIELD = 5 * MEBIBYTE
LONG_EVERY = 50_000
POLL_S = 0.25


def main() -> None:
    """Make the file, take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="folder; default: the one of mini")
    parser.add_argument("--rows", type=int, default=143_000)
    parser.add_argument("--megabytes", type=float, default=600.0)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    articles, cleaned = options.scratch / "articles.csv", options.scratch / "cleaned.jsonl"
    generate(options.sample, articles, options.rows, int(options.megabytes * 1e6))
    size = write_cleaned(articles, cleaned)
    print(f"{articles.stat().st_size / 1e6:.0f} MB, {options.rows:,} rows; cleaned {size / 1e6:.0f} MB", flush=True)
    turns = {"torso": prepare} | {call: functools.partial(bare, call) for call in ("encode_batch", "encode_batch_fast")}
    done: dict[str, list[Turn]] = {name: [] for name in turns}
    for _ in range(options.repeat):
        for name, turn in turns.items():
            done[name].append(turn(options))
            print(f"{name}: {done[name][-1].words(size)}", flush=True)
    report(done)
    for path in (articles, cleaned):
        path.unlink()


@dataclass(frozen=True)
class Turn:
    """What one took, of all its processes together."""

    seconds: float
    cpu_seconds: float
    tokens: int
    peak: int
    """Bytes."""

    def words(self, size: int) -> str:
        """For people."""
        rate = size / 1e6 / self.seconds
        return (
            f"{self.seconds:.1f} s, {rate:.2f} MB/s, CPU {self.cpu_seconds:.1f} s, peak {self.peak / MEBIBYTE:.0f} MiB"
        )


def report(done: dict[str, list[Turn]]) -> None:
    """The ratios of the medians. Where other programs share the machine, CPU time tells more than seconds."""
    tokens = {turn.tokens for turns in done.values() for turn in turns}
    print(f"tokens: {', '.join(f'{count:,}' for count in tokens)}{'' if len(tokens) == 1 else ' (they differ!)'}")
    ours = done.pop("torso")
    for name, theirs in done.items():
        wall = median(turn.seconds for turn in theirs) / median(turn.seconds for turn in ours)
        cpu = median(turn.cpu_seconds for turn in theirs) / median(turn.cpu_seconds for turn in ours)
        print(f"throughput by medians, {name} = 1: {wall:.3f}; by CPU time: {cpu:.3f}")


def generate(sample: Path, path: Path, num_rows: int, size: int) -> None:
    """About `size` bytes; every row is written by its number alone."""
    csv.field_size_limit(1 << 30)
    with sample.open(encoding="utf-8", newline="") as file:
        texts = [row[-1] for row in itertools.islice(csv.reader(file), 1, 200)]
    sentences = [s for text in texts for s in re.split(r"(?<=[.!?])\s+", text) if 20 < len(s) < 400]
    mean = size / num_rows - 90  # what the other columns and quotes take
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for number in range(num_rows):
            writer.writerow(row(number, sentences, mean))


def row(number: int, sentences: list[str], mean: float) -> list[str]:
    """Lengths are spread as those of articles are; one in thirty has some dirt."""
    source = number - 1 if number % 400 == 399 else number  # a duplicate
    chance = random.Random(source)
    length = LONG_FIELD if source % LONG_EVERY == 77 else mean * chance.lognormvariate(-0.18, 0.6)
    picked, total = list[str](), 0
    while total < length:
        picked.append(sentences[chance.randrange(len(sentences))])
        total += len(picked[-1]) + 1
    text = "".join(s + ("\n\n" if chance.random() < 0.2 else " ") for s in picked)
    if chance.random() < 0.7:
        text = text.replace("'", "’").replace(" - ", " — ").replace(" the ", " the “", 1).replace(".", ".”", 1)
    made = [str(source), str(17283 + source), picked[0][:60], "Made", "", "2016-12-31", "2016.0", "12.0", "", text]
    return dirty(made, number)


def dirty(made: list[str], number: int) -> list[str]:
    """Each kind of dirt, at its rate."""
    text = made[-1]
    changes: dict[int, Callable[[], str]] = {
        3: lambda: f"<p>{text}</p><script>var x = 1 < 2;</script>",
        33: lambda: text.replace(" and ", " &amp; ").replace("“", "&ldquo;"),
        63: lambda: text.replace(". ", ".\u200b \x07", 3),
        93: lambda: "",
        123: lambda: f"{text[:200]}\udce9{text[200:]}",
        153: lambda: text.replace("e", "e\u0301", 20),
    }
    made[-1] = changes.get(number % 180, lambda: text)()
    return made[:-2] if number % 1000 == 500 else made


def write_cleaned(articles: Path, path: Path) -> int:
    """One JSON string a line for each article that is kept; returns their bytes of UTF-8."""
    recipe, seen, size = Recipe(normalising=Normalising(), tokenizer=None), set[bytes](), 0
    with path.open("w", encoding="utf-8") as file:
        for one in read_rows(articles):
            for article in articles_of(recipe, [] if one.reason else [one.text]):
                if article is not None and article.digest not in seen:
                    seen.add(article.digest)
                    size += len(article.text.encode())
                    file.write(json.dumps(article.text) + "\n")
    return size


def prepare(options: argparse.Namespace) -> Turn:
    """The whole command; tokens without end tokens."""
    out = options.scratch / "prepared"
    command = [
        sys.executable,
        "-m",
        "torso",
        "prepare",
        "news",
        str(options.scratch / "articles.csv"),
        "--out",
        str(out),
    ]
    if options.tokenizer:
        command += ["--tokenizer", str(options.tokenizer)]
    started, cpu_before = time.monotonic(), cpu_of_children()
    _, peak = watched(command)
    spent, cpu = time.monotonic() - started, cpu_of_children() - cpu_before
    splits = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["splits"].values()
    tokens = sum(split["tokens"] - split["articles"] - 1 for split in splits)
    shutil.rmtree(out)
    return Turn(spent, cpu, tokens, peak)


def cpu_of_children() -> float:
    """Seconds of those that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare(call: str, options: argparse.Namespace) -> Turn:
    """The library's calls, in a process of their own."""
    from torso.model.hub import tokenizer_folder

    folder = options.tokenizer or tokenizer_folder("mini")
    command = [sys.executable, "-c", BARE, str(folder), str(options.scratch / "cleaned.jsonl"), call, str(BARE_BATCH)]
    said, peak = watched(command)
    spent, cpu, tokens = said.split()
    return Turn(float(spent), float(cpu), int(tokens), peak)


BARE = """
import json, sys, time
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

folder, call, limit = Path(sys.argv[1]), sys.argv[3], int(sys.argv[4])
if (folder / "tokenizer.json").is_file():
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
else:
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
spent, cpu, tokens = 0.0, 0.0, 0

def encode(texts):
    global spent, cpu, tokens
    started, cpu_before = time.perf_counter(), time.process_time()
    found = getattr(tokenizer, call)(texts, add_special_tokens=False)
    spent, cpu = spent + time.perf_counter() - started, cpu + time.process_time() - cpu_before
    tokens += sum(map(len, found))

texts, size = [], 0
for line in open(sys.argv[2], encoding="utf-8"):
    texts.append(json.loads(line))
    size += len(texts[-1])
    if size >= limit:
        encode(texts)
        texts, size = [], 0
encode(texts)
print(spent, cpu, tokens)
"""


def watched(command: list[str]) -> tuple[str, int]:
    """What a command printed, and the peak of its process tree's memory."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "true"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(sizes(process.pid)))
            time.sleep(POLL_S)
        said = process.stdout.read() if process.stdout else ""
        if process.returncode:
            sys.exit(f"{' '.join(command[:6])} … ended with {process.returncode}")
    return said, peak


def sizes(pid: int) -> Iterator[int]:
    """Proportional set size of each process of a tree."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            yield int(one.memory_full_info().pss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


if __name__ == "__main__":
    main()

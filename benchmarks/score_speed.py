"""What scoring costs: `python benchmarks/score_speed.py --references testset_w_refs.csv --predictions tgen.txt`.

Prints the median time of each metric of `torso score` (tokenisation included: caches are emptied before each), and,
where `pycocoevalcap` and Java are installed, of the same steps by way of the official scorer: CoreNLP in Java for
tokens, and COCO's Python code for ROUGE-L and CIDEr on them.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from torso.data.alignment import align
from torso.data.scored_files import read_outputs, read_references
from torso.errors import MissingResourceError
from torso.evaluation.metrics import METRICS, Measured, Texts
from torso.evaluation.ngrams import mteval_tokens
from torso.evaluation.official_meteor import meteor_command
from torso.evaluation.ptb import ptb_tokens
from torso.evaluation.resampling import intervals, p_values


def main() -> None:
    """Time, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--predictions", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    aligned = align(read_references(options.references), read_outputs(options.predictions))
    texts = Texts(outputs=aligned.outputs, references=aligned.references, mrs=aligned.mrs)
    print(f"{len(texts.outputs)} outputs, {sum(map(len, texts.references))} references, medians of {options.repeat}")
    measured = ours(texts, options.repeat)
    report("bootstrap of all, 1000 resamples", options.repeat, lambda: intervals(measured, 1000, 0))
    report("comparison of all, 10000 trials", options.repeat, lambda: p_values(measured, measured, 0))
    theirs(texts, options.repeat)


def ours(texts: Texts, repeat: int) -> list[Measured]:
    """Torso's tokenizer and metrics."""
    everything = [*texts.outputs, *(r for rs in texts.references for r in rs)]
    report("PTB tokens, torso", repeat, lambda: [ptb_tokens(text) for text in everything])
    found = []
    for metric in METRICS:
        try:
            found.append(Measured(metric, texts, report(metric.title, repeat, lambda m=metric: m.statistics(texts))))  # type: ignore[misc]
        except MissingResourceError as error:
            print(f"{metric.title}: not computed. {error}")
    return found


def theirs(texts: Texts, repeat: int) -> None:
    """The official scorer's way, as far as it is installed."""
    try:
        meteor_command()
    except MissingResourceError as error:
        print(f"the official way: not timed. {error}")
        return
    references = {i: [{"caption": r} for r in rs] for i, rs in enumerate(texts.references)}
    outputs = {i: [{"caption": output}] for i, output in enumerate(texts.outputs)}
    tokenizer = _of("tokenizer.ptbtokenizer", "PTBTokenizer")

    def tokens() -> tuple[Any, Any]:
        return tokenizer.tokenize(references), tokenizer.tokenize(outputs)

    gold, said = report("PTB tokens, CoreNLP in Java", repeat, tokens)
    for name, place in (("ROUGE-L", ("rouge.rouge", "Rouge")), ("CIDEr", ("cider.cider", "Cider"))):
        scorer = _of(*place)
        value, _ = report(
            f"{name}, COCO's code, after its tokens", repeat, lambda s=scorer: s.compute_score(gold, said)
        )  # type: ignore[misc]
        print(f"{'':42s} (value {value:.6f})")


def report(name: str, repeat: int, work: Callable[[], Any]) -> Any:
    """Run and print the median; returns the last result."""
    seconds, result = [], None
    for _ in range(repeat):
        for cached in (ptb_tokens, mteval_tokens, Tokenizer13a.__call__, TokenizerRegexp.__call__):
            cached.cache_clear()
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    print(f"{name:42s} {statistics.median(seconds):8.3f} s", flush=True)
    return result


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"pycocoevalcap.{module}"), name)()


if __name__ == "__main__":
    main()

"""Scores of a model on a split of a data set, and its outputs kept beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torso.data.corpus import Group
from torso.data.encoding import encode_prompts, encode_split
from torso.data.micro_batches import evaluation_batches
from torso.data.tokenizer import Tokenizer
from torso.errors import MissingResourceError
from torso.evaluation.bleu import hf_bleu, official_bleu
from torso.evaluation.decoding import MAX_NEW_TOKENS, greedy
from torso.evaluation.meteor import hf_meteor
from torso.evaluation.model import CachedModel
from torso.evaluation.perplexity import Perplexity, perplexity
from torso.records import EvaluationRecord

OUTPUTS, SCORES = "outputs.jsonl", "scores.json"


@dataclass(frozen=True)
class Decoded:
    """One input, what the model said, and the right answers."""

    mr: str
    output: str
    references: tuple[str, ...]


def measure_perplexity(
    model: CachedModel, tokenizer: Tokenizer, groups: Sequence[Group], max_tokens: int, batch_size: int = 32
) -> Perplexity:
    """Over every reference of every group."""
    encoded = encode_split(groups, tokenizer, max_tokens)
    return perplexity(model, evaluation_batches(encoded.examples, batch_size))


def decode_groups(
    model: CachedModel,
    tokenizer: Tokenizer,
    groups: Sequence[Group],
    max_tokens: int,
    max_new_tokens: int = MAX_NEW_TOKENS,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Decoded]:
    """Greedy outputs, cut at a blank line."""
    prompts = encode_prompts(groups, tokenizer, max_tokens, max_new_tokens)
    outputs = greedy(model, prompts, tokenizer.eos_id, max_new_tokens, on_progress=on_progress)
    texts = [clean(tokenizer.decode(ids)) for ids in outputs]
    return [Decoded(g.mr, text, g.references) for g, text in zip(groups, texts, strict=True)]


def clean(text: str) -> str:
    """One line: cut at a blank line, white space joined."""
    return " ".join(text.split("\n\n")[0].split())


def score(decoded: Sequence[Decoded]) -> dict[str, float]:
    """By name of the definition; METEOR is left out, with a word, where its resources are missing."""
    outputs, references = [d.output for d in decoded], [d.references for d in decoded]
    scores = {"official_bleu": official_bleu(outputs, references), "hf_bleu": hf_bleu(outputs, references)}
    try:
        scores["hf_meteor"] = hf_meteor(outputs, references)
    except MissingResourceError as error:
        print(f"torso: warning: {error}", file=sys.stderr)
    return scores


def save(folder: Path, record: EvaluationRecord, decoded: Sequence[Decoded]) -> None:
    """`scores.json`, and `outputs.jsonl` with one line an input; scores last, so that they never stand alone."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"mr": d.mr, "output": d.output, "references": list(d.references)}, ensure_ascii=False)
        for d in decoded
    ]
    _replace(folder / OUTPUTS, "".join(f"{line}\n" for line in lines))
    document = {
        "step": record.step,
        "subset": record.subset,
        "adapted": record.adapted,
        "perplexity": record.perplexity,
        "scores": record.scores,
    }
    _replace(folder / SCORES, json.dumps(document, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)

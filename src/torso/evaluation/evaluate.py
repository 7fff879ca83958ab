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
from torso.data.slots import parse_mr
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError
from torso.evaluation.decoding import MAX_NEW_TOKENS, DecodingConfig, decode
from torso.evaluation.metrics import Texts, measure
from torso.evaluation.model import CachedModel
from torso.evaluation.perplexity import Perplexity, perplexity
from torso.evaluation.slot_errors import slot_errors
from torso.files import replace_atomically, storing
from torso.records import EvaluationRecord, finite

OUTPUTS, PREDICTIONS, SCORES = "outputs.jsonl", "predictions.txt", "scores.json"


@dataclass(frozen=True)
class Decoded:
    """One input, what the model said, and the right answers."""

    mr: str
    output: str
    references: tuple[str, ...]


def measure_perplexity(
    model: CachedModel, tokenizer: Tokenizer, groups: Sequence[Group], max_tokens: int, batch_size: int = 32
) -> Perplexity:
    """Over every reference of every group, but for over-long ones, which stderr is told of."""
    encoded = encode_split(groups, tokenizer, max_tokens)
    if encoded.report.num_over_long:
        print(f"perplexity: {encoded.report}", file=sys.stderr)
    return perplexity(model, evaluation_batches(encoded.examples, batch_size))


def decode_groups(
    model: CachedModel,
    tokenizer: Tokenizer,
    groups: Sequence[Group],
    max_tokens: int,
    config: DecodingConfig,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Decoded]:
    """One output for each group, cut at a blank line."""
    prompts = encode_prompts(groups, tokenizer, max_tokens, config.max_new_tokens)
    outputs = decode(model, prompts, tokenizer.eos_id, config, on_progress)
    texts = [clean(tokenizer.decode(ids)) for ids in outputs]
    return [Decoded(g.mr, text, g.references) for g, text in zip(groups, texts, strict=True)]


def check_inputs(groups: Sequence[Group], tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raise DataError unless these groups can be decoded; texts without inputs are not decoded."""
    if not is_plain_text(groups):
        encode_prompts(groups, tokenizer, max_tokens, MAX_NEW_TOKENS)


def is_plain_text(groups: Sequence[Group]) -> bool:
    """Whether there is no input to decode from: such a set has a perplexity and no scores."""
    return not any(group.prompt for group in groups)


def clean(text: str) -> str:
    """One line: cut at a blank line, white space joined."""
    return " ".join(text.split("\n\n")[0].split())


def score(decoded: Sequence[Decoded]) -> dict[str, float]:
    """By name of the definition, as in `metrics.METRICS`; what cannot be computed is left out, with a word.

    The official METEOR takes Java and some seconds a set: `torso score` adds it later. The slot error rate is there
    when the inputs are E2E's, and `name_copied` when they have names. Most are 0 to 1; NIST has no upper bound, and
    CIDEr's is 10.
    """
    mrs, outputs = [d.mr for d in decoded], [d.output for d in decoded]
    texts = Texts(outputs=outputs, references=[d.references for d in decoded], mrs=mrs)
    found = measure(texts, leave_out=("official_meteor",))
    for name, why in found.not_computed.items():
        if name != "slot_error_rate":
            print(f"torso: warning: {why}", file=sys.stderr)
    scores = {measured.metric.name: measured.value for measured in found.measured}
    copied = name_copied(mrs, outputs)
    return scores if copied is None else scores | {"name_copied": copied}


def name_copied(mrs: Sequence[str], outputs: Sequence[str]) -> float | None:
    """The share of outputs with the name that their meaning representation gives, letter by letter.

    Of those that give one; None when none does.
    """
    pairs = [(_name(mr), output) for mr, output in zip(mrs, outputs, strict=True)]
    copied = [name in output for name, output in pairs if name]
    return sum(copied) / len(copied) if copied else None


def _name(mr: str) -> str:
    try:
        return dict(parse_mr(mr)).get("name", "")
    except DataError:
        return ""  # the input is people's own text


def save(folder: Path, record: EvaluationRecord, decoded: Sequence[Decoded]) -> None:
    """`outputs.jsonl` with one line an input, `predictions.txt` with the outputs alone, and `scores.json`.

    Scores come last, and older ones go first, so that scores never stand beside other outputs than their own.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SCORES).unlink(missing_ok=True)
    lines = [json.dumps(_document(d), ensure_ascii=False) for d in decoded]
    replace_atomically(folder / OUTPUTS, _lines(lines))
    replace_atomically(folder / PREDICTIONS, _lines([d.output for d in decoded]))
    document = {
        "step": record.step,
        "subset": record.subset,
        "adapted": record.adapted,
        "partial": record.partial,
        "decoding": record.decoding,
        "perplexity": record.perplexity,
        "scores": record.scores,
    }
    text = json.dumps(finite(document), indent=1, allow_nan=False)
    replace_atomically(folder / SCORES, f"{text}\n".encode())


def _document(decoded: Decoded) -> dict[str, object]:
    """One line of `outputs.jsonl`; with slot errors by kind where the input is E2E's."""
    found: dict[str, object] = {"mr": decoded.mr, "output": decoded.output, "references": list(decoded.references)}
    errors = slot_errors(decoded.mr, decoded.output)
    return found if errors is None else found | {"slot_errors": errors.by_kind}


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()

"""Evaluation of a tiny model from groups to files."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from torso.config import RunConfig
from torso.data.corpus import Group
from torso.data.encoding import encode_split
from torso.data.slots import prompt_of
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError, MissingResourceError
from torso.evaluation import evaluate, metrics
from torso.evaluation.bleu import hf_bleu, official_bleu
from torso.evaluation.decoding import DecodingConfig
from torso.evaluation.evaluate import Decoded, clean, decode_groups, measure_perplexity, name_copied, save, score
from torso.evaluation.model import CachedModel, LocalMiddle
from torso.model.config import Cuts, GPT2Config
from torso.model.stages import Body, Head, Tail
from torso.model.weights import RandomWeights, build
from torso.records import EvaluationRecord

CUTS = Cuts(1, 2, 3)
TWELVE = DecodingConfig(max_new_tokens=12)
GROUPS = [
    Group(mr, prompt_of(mr), references)
    for mr, references in (
        ("name[A], eatType[pub]", ("A is a pub.", "There is a pub, A.")),
        ("name[B], area[riverside]", ("B is near the river.",)),
        ("name[Blue Spice], near[A]", ("Blue Spice is near A.", "Go to Blue Spice.", "Near A is Blue Spice.")),
    )
]
RECORD = EvaluationRecord(step=7, subset="dev", adapted=True, perplexity=3.5, scores={"hf_bleu": 0.25})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Tokenizer:
    return Tokenizer(train_small(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> CachedModel:
    shape = {"n_positions": 128, "n_embd": 16, "n_layer": 3, "n_head": 2}
    source = RandomWeights(GPT2Config(vocab_size=tokenizer.vocab_size, initializer_range=0.3, **shape), seed=1)
    middle = LocalMiddle(build(Body, source, CUTS), CUTS)
    return CachedModel(build(Head, source, CUTS), middle, build(Tail, source, CUTS), CUTS, torch.device("cpu"))


def test_over_long_references_are_left_out_of_the_perplexity_with_a_word(
    model: CachedModel, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = sorted(map(len, encode_split(GROUPS, tokenizer, 128).examples))
    measure_perplexity(model, tokenizer, GROUPS, lengths[-1])
    assert capsys.readouterr().err == ""
    measure_perplexity(model, tokenizer, GROUPS, lengths[-1] - 1)
    assert "left out 1 of more than" in capsys.readouterr().err


def greedy_anew(model: CachedModel, prompt: Sequence[int], end_id: int, count: int) -> list[int]:
    """Without caches and batches: everything computed again for each token."""
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            hidden = model.hidden(torch.tensor([ids]), [len(ids)])
        token = int(model.tail.logits(hidden[0, -1]).argmax())
        if token == end_id:
            break
        ids.append(token)
    return ids[len(prompt) :]


def test_each_group_is_decoded_once_from_its_prompt_and_stands_beside_its_references(
    model: CachedModel, tokenizer: Tokenizer
) -> None:
    told: list[int] = []
    decoded = decode_groups(model, tokenizer, GROUPS, 128, TWELVE, on_progress=told.append)
    assert [(d.mr, d.references) for d in decoded] == [(g.mr, g.references) for g in GROUPS]
    assert told == [3]
    for group, found in zip(GROUPS, decoded, strict=True):
        prompt = [*tokenizer.encode(group.prompt), tokenizer.eos_id]
        assert found.output == clean(tokenizer.decode(greedy_anew(model, prompt, tokenizer.eos_id, 12)))
    assert len({d.output for d in decoded}) > 1


def test_perplexity_covers_every_reference(model: CachedModel, tokenizer: Tokenizer) -> None:
    report = encode_split(GROUPS, tokenizer, 128).report
    for batch_size in (1, 32):
        found = measure_perplexity(model, tokenizer, GROUPS, 128, batch_size)
        assert found.target_tokens == report.num_target_tokens
        assert found.value == pytest.approx(math.exp(found.loss_sum / found.target_tokens))
    assert report.num_examples == 6


def test_a_prompt_without_room_is_an_error_before_anything_is_decoded(model: CachedModel, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="prompt 1"):
        decode_groups(model, tokenizer, GROUPS, 20, DecodingConfig(max_new_tokens=19))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" A is a pub. ", "A is a pub."),
        ("A is\na  pub.\n\nAnd more", "A is a pub."),
        ("one\r\u2028two\tthree\x85", "one two three"),
        ("\n\nA", ""),
        ("", ""),
    ],
)
def test_outputs_become_one_line_cut_at_a_blank_one(text: str, line: str) -> None:
    assert clean(text) == line


ALWAYS = {"official_bleu", "official_nist", "official_rouge_l", "official_cider", "hf_bleu", "slot_error_rate"}
ALWAYS |= {"name_copied"}


def perfect() -> list[Decoded]:
    return [Decoded(g.mr, g.references[0], g.references) for g in GROUPS]


def test_scores_are_those_of_the_definitions_by_name() -> None:
    decoded = [*perfect()[:2], dataclasses.replace(perfect()[2], output="Blue Spice is a pub near A.")]
    outputs, references = [d.output for d in decoded], [d.references for d in decoded]
    scores = score(decoded)
    assert scores["official_bleu"] == official_bleu(outputs, references)
    assert scores["hf_bleu"] == hf_bleu(outputs, references)
    assert scores["name_copied"] == 1.0
    assert set(scores) - {"hf_meteor", "official_meteor"} == ALWAYS


def test_every_score_of_an_evaluation_can_choose_the_best_checkpoint() -> None:
    choices = typing.get_args(typing.get_type_hints(RunConfig)["best_by"])
    assert set(choices) == {"perplexity", *score(perfect())}


def test_without_wordnet_meteor_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*args: object) -> float:
        raise MissingResourceError("WordNet 3.0 is needed", "Run `make resources`.")

    monkeypatch.setattr(metrics, "hf_meteor_segments", missing)
    assert set(score(perfect())) - {"official_meteor"} == ALWAYS
    assert capsys.readouterr().err == "torso: warning: WordNet 3.0 is needed. Run `make resources`.\n"


def test_names_count_as_copied_letter_by_letter_among_inputs_that_give_one() -> None:
    mrs = ["name[Blue Spice]", "name[Café A], food[Thai]", "food[Thai]", "free text", "name[B]"]
    outputs = ["At Blue Spice.", "Cafe A serves Thai food.", "B", "text", ""]
    assert name_copied(mrs, outputs) == pytest.approx(1 / 3)
    assert name_copied(["free text", "food[Thai]"], ["a", "b"]) is None
    assert "name_copied" not in score([Decoded("free text", "a", ("a",))])


def test_outputs_predictions_and_scores_lie_side_by_side(tmp_path: Path) -> None:
    decoded = [*perfect(), Decoded("name[Zoë]", "", ("Zoë costs £20.",))]
    folder = tmp_path / "evaluation" / "dev"
    save(folder, RECORD, decoded)
    lines = (folder / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    none: dict[str, list[str]] = {"missing": [], "added": [], "wrong": []}
    found = [none] * len(perfect()) + [none | {"missing": ["name"]}]
    assert [json.loads(line) for line in lines] == [
        {"mr": d.mr, "output": d.output, "references": list(d.references), "slot_errors": errors}
        for d, errors in zip(decoded, found, strict=True)
    ]
    assert "Zoë costs £20." in lines[-1]
    assert (folder / "predictions.txt").read_text().split("\n") == [d.output for d in decoded] + [""]
    document = json.loads((folder / "scores.json").read_text())
    assert document == {
        "step": 7,
        "subset": "dev",
        "adapted": True,
        "partial": False,
        "decoding": "",
        "perplexity": 3.5,
        "scores": {"hf_bleu": 0.25},
    }
    assert len(list(folder.iterdir())) == 3


def test_scores_never_stand_beside_other_outputs_than_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, RECORD, perfect())

    def fails(path: Path, content: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(evaluate, "replace_atomically", fails)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, RECORD, perfect()[:1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs.jsonl", "predictions.txt"]


def test_an_evaluation_without_decoding_keeps_its_perplexity(tmp_path: Path) -> None:
    save(tmp_path, dataclasses.replace(RECORD, scores={}), [])
    assert (tmp_path / "outputs.jsonl").read_bytes() == (tmp_path / "predictions.txt").read_bytes() == b""
    assert json.loads((tmp_path / "scores.json").read_text())["perplexity"] == 3.5


def test_a_perplexity_that_is_not_finite_is_null(tmp_path: Path) -> None:
    save(tmp_path, dataclasses.replace(RECORD, perplexity=math.inf), [])
    document = json.loads((tmp_path / "scores.json").read_text(), parse_constant=pytest.fail)
    assert document["perplexity"] is None


def test_from_groups_to_files_scores_are_recomputable_from_what_is_saved(
    model: CachedModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    decoded = decode_groups(model, tokenizer, GROUPS, 128, TWELVE)
    measured = measure_perplexity(model, tokenizer, GROUPS, 128)
    record = dataclasses.replace(RECORD, perplexity=measured.value, scores=score(decoded))
    save(tmp_path, record, decoded)
    rows = [json.loads(line) for line in (tmp_path / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]
    again = score([Decoded(row["mr"], row["output"], tuple(row["references"])) for row in rows])
    assert json.loads((tmp_path / "scores.json").read_text())["scores"] == again
    assert (tmp_path / "predictions.txt").read_text(encoding="utf-8").splitlines() == [row["output"] for row in rows]

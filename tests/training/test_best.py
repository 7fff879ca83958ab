from __future__ import annotations

import dataclasses
import math

from torso.records import EpochRecord, EvaluationRecord, Record
from torso.training.best import best, best_step


def epoch(step: int, loss: float) -> EpochRecord:
    counts = {field.name: 0 for field in dataclasses.fields(EpochRecord)}
    return EpochRecord(**counts | {"step": step, "loss": loss})  # type: ignore[arg-type]


def evaluation(
    step: int,
    perplexity: float,
    subset: str = "dev",
    adapted: bool = True,
    partial: bool = False,
    scores: dict[str, float] | None = None,
) -> EvaluationRecord:
    return EvaluationRecord(
        step=step, subset=subset, adapted=adapted, perplexity=perplexity, scores=scores or {}, partial=partial
    )


def test_without_an_evaluation_the_lowest_epoch_loss_is_the_best() -> None:
    assert best_step([epoch(10, 2.0), epoch(20, 1.5), epoch(30, 1.7)], [10, 20, 30]) == 20


def test_an_evaluation_on_dev_outweighs_the_loss() -> None:
    records = [epoch(10, 2.0), epoch(20, 1.5), evaluation(10, 4.0)]
    assert best_step(records, [10, 20]) == 10
    assert best_step([*records, evaluation(20, 3.0)], [10, 20]) == 20


def test_a_named_score_decides_where_a_checkpoint_has_it_and_more_is_better() -> None:
    records = [evaluation(10, 4.0, scores={"hf_bleu": 0.3}), evaluation(20, 3.0, scores={"hf_bleu": 0.2})]
    assert best_step(records, [10, 20], "hf_bleu") == 10
    assert best_step([*records, evaluation(30, 1.0)], [10, 20, 30], "hf_bleu") == 10
    assert best_step(records, [10, 20], "official_bleu") == 20


def test_what_decided_is_told() -> None:
    records: list[Record] = [epoch(10, 2.0), epoch(20, 1.5)]
    assert best(records, [10, 20], "hf_bleu") == (20, "epoch loss")
    records.append(evaluation(10, 4.0))
    assert best(records, [10, 20], "hf_bleu") == (10, "perplexity")
    records.append(evaluation(20, 5.0, scores={"hf_bleu": 0.3}))
    assert best(records, [10, 20], "hf_bleu") == (20, "hf_bleu")


def test_of_slot_errors_less_is_better() -> None:
    records = [
        evaluation(step, 4.0, scores={"slot_error_rate": rate}) for step, rate in ((10, 0.3), (20, 0.1), (30, 0.2))
    ]
    assert best_step(records, [10, 20, 30], "slot_error_rate") == 20


def test_step_0_can_be_the_best_too() -> None:
    assert best_step([epoch(10, 2.0), evaluation(0, 4.0)], [0, 10]) == 0


def test_only_what_is_saved_can_be_the_best() -> None:
    assert best_step([epoch(10, 1.0), epoch(20, 1.5), evaluation(10, 1.0)], [20, 30]) == 20


def test_the_base_model_the_test_split_and_a_part_of_dev_do_not_count() -> None:
    others = [evaluation(20, 1.0, "test"), evaluation(20, 1.0, adapted=False), evaluation(20, 1.0, partial=True)]
    assert best_step([*others, evaluation(10, 9.0)], [10, 20]) == 10


def test_what_is_not_finite_is_never_the_best_and_of_equals_the_newest_is() -> None:
    assert best_step([evaluation(10, math.nan), evaluation(20, 5.0), evaluation(30, 5.0)], [10, 20, 30]) == 30
    assert best_step([epoch(10, math.inf)], [10]) is None
    assert best_step([], [10]) is None

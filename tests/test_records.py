from __future__ import annotations

import json
import math

import pytest

from torso.records import EvaluationRecord, StepRecord, grad_norms, parse_line, to_line


def test_a_record_survives_its_line() -> None:
    record = EvaluationRecord(step=3, subset="dev", adapted=True, perplexity=1.5, scores={"hf_bleu": 0.25})
    assert parse_line(to_line(record)) == record


def test_norms_of_an_epoch_leave_skipped_steps_out() -> None:
    steps = [step(1.0, skipped=False), step(math.inf, skipped=True), step(3.0, skipped=False)]
    assert grad_norms(steps) == [1.0, 3.0]
    assert all(math.isnan(norm) for norm in grad_norms(steps[1:2]))


def step(norm: float, *, skipped: bool) -> StepRecord:
    return StepRecord(
        step=1, epoch=1, loss=1.0, target_tokens=1, real_tokens=1, padded_tokens=1, tokens_per_second=1.0,
        grad_norm=norm, clip_factor=1.0, learning_rate=1e-3, skipped=skipped, seconds=1.0, memory_bytes=1,
        server_memory_bytes=0, bytes_sent=0, bytes_received=0,
    )  # fmt: skip


def test_what_is_not_finite_is_null_in_a_line_and_not_a_number_when_read() -> None:
    record = EvaluationRecord(step=3, subset="dev", adapted=True, perplexity=math.inf, scores={"hf_bleu": math.nan})
    line = to_line(record)
    assert json.loads(line, parse_constant=pytest.fail)["perplexity"] is None
    read = parse_line(line)
    assert isinstance(read, EvaluationRecord)
    assert math.isnan(read.perplexity)
    assert math.isnan(read.scores["hf_bleu"])


@pytest.mark.parametrize("line", ["", "{", '{"kind": "other"}', '{"kind": "evaluation", "step": 1}'])
def test_a_broken_line_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        parse_line(line)

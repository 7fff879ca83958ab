from __future__ import annotations

import json
import math

import pytest

from torso.records import EvaluationRecord, parse_line, to_line


def test_a_record_survives_its_line() -> None:
    record = EvaluationRecord(step=3, subset="dev", adapted=True, perplexity=1.5, scores={"hf_bleu": 0.25})
    assert parse_line(to_line(record)) == record


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

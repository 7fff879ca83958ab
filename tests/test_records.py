from __future__ import annotations

import pytest

from torso.records import EvaluationRecord, parse_line, to_line


def test_a_record_survives_its_line() -> None:
    record = EvaluationRecord(step=3, subset="dev", adapted=True, perplexity=1.5, scores={"hf_bleu": 0.25})
    assert parse_line(to_line(record)) == record


@pytest.mark.parametrize("line", ["", "{", '{"kind": "other"}', '{"kind": "evaluation", "step": 1}'])
def test_a_broken_line_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        parse_line(line)

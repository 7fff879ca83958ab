from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torso.evaluation import resources
from torso.evaluation.meteor import hf_meteor, hf_meteor_segments

if TYPE_CHECKING:
    from tests.evaluation.conftest import Scored


@pytest.fixture(autouse=True)
def _resources() -> None:
    if not resources.available():
        pytest.skip("WordNet 3.0 or Punkt is not there: run `make resources`")


def test_the_ten_instances_have_hugging_faces_value_each_and_together(ten: Scored) -> None:
    assert hf_meteor_segments(ten.outputs, ten.references) == pytest.approx(ten.hf["hf_meteor_segments"], abs=1e-9)
    assert hf_meteor(ten.outputs, ten.references) == pytest.approx(ten.hf["hf_meteor"], abs=1e-9)


@pytest.mark.slow
def test_tgens_outputs_on_the_test_set_have_hugging_faces_value_each_and_together(tgen: Scored) -> None:
    segments = hf_meteor_segments(tgen.outputs, tgen.references)
    assert segments == pytest.approx(tgen.hf["hf_meteor_segments"], abs=1e-9)
    assert sum(segments) / len(segments) == pytest.approx(tgen.hf["hf_meteor"], abs=1e-9)


def test_it_is_not_the_official_one(ten: Scored) -> None:
    assert hf_meteor(ten.outputs, ten.references) > ten.official["corpus"]["METEOR"] + 0.3


def test_case_stems_and_synonyms_match() -> None:
    same, cased, stemmed, synonym, other = hf_meteor_segments(
        ["the pub is cheap", "The PUB is Cheap", "the pubs is cheap", "the saloon is cheap", "the river is cheap"],
        [["the pub is cheap"]] * 5,
    )
    assert same == cased == stemmed == synonym > other


def test_the_best_reference_counts() -> None:
    alone = [hf_meteor(["a cheap pub"], [[text]]) for text in ("a cheap pub", "a dear one")]
    assert hf_meteor(["a cheap pub"], [["a dear one", "a cheap pub"]]) == max(alone) > min(alone)


def test_empty_outputs_count_as_0_and_break_nothing(ten: Scored) -> None:
    assert hf_meteor_segments(["", *ten.outputs[1:]], ten.references)[0] == 0.0
    assert hf_meteor(["a", ""], [["a", "b"], [""]]) >= 0.0
    assert hf_meteor([], []) == 0.0


def test_missing_lines_and_transposed_references_are_errors(ten: Scored) -> None:
    with pytest.raises(ValueError, match="9 outputs, but 10 lists of references"):
        hf_meteor(ten.outputs[1:], ten.references)
    with pytest.raises(ValueError, match="10 outputs, but 3 lists"):
        hf_meteor(ten.outputs, [[references[i] for references in ten.references] for i in range(3)])
    with pytest.raises(ValueError, match="output 1 needs a list of references"):
        hf_meteor(ten.outputs, [references[0] for references in ten.references])

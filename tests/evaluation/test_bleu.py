from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from torso.evaluation.bleu import hf_bleu, official_bleu

if TYPE_CHECKING:
    from tests.evaluation.conftest import Scored

Score = Callable[[Sequence[str], Sequence[Sequence[str]]], float]
BOTH = pytest.mark.parametrize("bleu", [official_bleu, hf_bleu])


def test_the_ten_instances_have_their_official_value(ten: Scored) -> None:
    assert official_bleu(ten.outputs, ten.references) == pytest.approx(ten.official["corpus"]["BLEU_py"], abs=1e-9)
    assert hf_bleu(ten.outputs, ten.references) == pytest.approx(ten.hf["hf_bleu"]["bleu"], abs=1e-9)


def test_tgens_outputs_on_the_test_set_have_their_official_value(tgen: Scored) -> None:
    assert official_bleu(tgen.outputs, tgen.references) == pytest.approx(tgen.official["corpus"]["BLEU_py"], abs=1e-9)
    assert hf_bleu(tgen.outputs, tgen.references) == pytest.approx(tgen.hf["hf_bleu"]["bleu"], abs=1e-9)


def test_each_of_the_ten_alone_has_its_official_value(ten: Scored) -> None:
    for output, references, values in zip(ten.outputs, ten.references, ten.official["segments"], strict=True):
        assert official_bleu([output], [references]) == pytest.approx(values["BLEU"], abs=1e-6)


@BOTH
def test_a_copy_of_a_reference_scores_1_and_nothing_in_common_0(bleu: Score, ten: Scored) -> None:
    assert bleu([rs[0] for rs in ten.references], ten.references) == pytest.approx(1.0)
    assert bleu(["q w e r t y u i o p"] * 10, ten.references) == 0.0


def test_only_the_official_one_ignores_case(ten: Scored) -> None:
    shouted = [output.upper() for output in ten.outputs]
    assert official_bleu(shouted, ten.references) == official_bleu(ten.outputs, ten.references)
    assert hf_bleu(shouted, ten.references) < 0.1


def test_the_official_brevity_is_against_the_closest_reference_and_the_other_against_the_shortest() -> None:
    outputs, references = ["a b c d e f"], [["a b c d e f g", "a b c"]]
    assert official_bleu(outputs, references) == pytest.approx(2.718281828 ** (1 - 7 / 6))
    assert hf_bleu(outputs, references) == pytest.approx(1.0)


@BOTH
def test_empty_outputs_lower_the_score_and_break_nothing(bleu: Score, ten: Scored) -> None:
    whole = bleu(ten.outputs, ten.references)
    assert 0.5 * whole < bleu(["", *ten.outputs[1:]], ten.references) < whole
    assert bleu([""] * 10, ten.references) == 0.0
    assert bleu(["a"] * 10, ten.references) == 0.0
    assert bleu([], []) == 0.0


@BOTH
def test_order_of_segments_and_references_does_not_matter(bleu: Score, ten: Scored) -> None:
    backwards = bleu(ten.outputs[::-1], [references[::-1] for references in ten.references[::-1]])
    assert backwards == pytest.approx(bleu(ten.outputs, ten.references), abs=1e-12)


@BOTH
def test_a_missing_line_is_an_error_and_not_a_shift(bleu: Score, ten: Scored) -> None:
    with pytest.raises(ValueError, match="9 outputs, but 10 lists of references"):
        bleu(ten.outputs[1:], ten.references)
    with pytest.raises(ValueError, match="0 outputs, but 10"):
        bleu([], ten.references)


@BOTH
def test_transposed_references_are_an_error(bleu: Score, ten: Scored) -> None:
    streams = [[references[i] for references in ten.references] for i in range(3)]
    with pytest.raises(ValueError, match="10 outputs, but 3 lists of references"):
        bleu(ten.outputs, streams)


@BOTH
def test_a_text_in_place_of_a_list_and_an_empty_list_are_errors(bleu: Score, ten: Scored) -> None:
    with pytest.raises(ValueError, match="output 1 needs a list of references, got 'There is"):
        bleu(ten.outputs, [references[0] for references in ten.references])
    with pytest.raises(ValueError, match=r"output 2 needs a list of references, got \[\]"):
        bleu(["a", "b"], [["a"], []])

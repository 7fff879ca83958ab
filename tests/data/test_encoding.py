from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torso.data.corpus import Group
from torso.data.encoding import encode_prompts, encode_split
from torso.data.tokenizer import Tokenizer
from torso.errors import DataError

GROUPS = [
    Group("name[A]", "name : A", ("A is a pub.", "Go to A.")),
    Group("", "", ("free text",)),
    Group("name[B]", "name : B", ("B is " + "very " * 50 + "long.",)),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, train_small: Callable[..., Path]) -> Tokenizer:
    return Tokenizer(train_small(tmp_path_factory.mktemp("tokenizer")))


def test_a_sequence_is_prompt_end_space_reference_end(tokenizer: Tokenizer) -> None:
    example = encode_split(GROUPS, tokenizer, 1000).examples[1]
    assert example.group == 0
    assert example.prompt_ids == (*tokenizer.encode("name : A"), tokenizer.eos_id)
    assert example.target_ids == (*tokenizer.encode(" Go to A."), tokenizer.eos_id)
    assert len(example) == len(example.prompt_ids) + len(example.target_ids)


def test_plain_text_has_the_end_token_for_a_prompt(tokenizer: Tokenizer) -> None:
    example = encode_split(GROUPS, tokenizer, 1000).examples[2]
    assert example.prompt_ids == (tokenizer.eos_id,)
    assert tokenizer.decode(example.target_ids) == " free text"


def test_over_long_examples_are_left_out_whole_and_reported(tokenizer: Tokenizer) -> None:
    whole = encode_split(GROUPS, tokenizer, 1000)
    lengths = sorted(len(example) for example in whole.examples)
    cut = encode_split(GROUPS, tokenizer, lengths[-1] - 1)
    assert cut.examples == whole.examples[:3]
    assert (cut.report.num_examples, cut.report.num_over_long, cut.report.longest) == (3, 1, lengths[-1])
    assert str(cut.report).endswith(f"longest {lengths[-1]}; left out 1 of more than {lengths[-1] - 1} tokens")
    assert whole.report.num_over_long == 0
    assert whole.report.num_tokens == sum(lengths)
    assert whole.report.num_target_tokens == sum(len(example.target_ids) for example in whole.examples)
    assert encode_split(GROUPS, tokenizer, lengths[-1]).examples == whole.examples


def test_nothing_left_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="none of 4 examples is left: at most 3 tokens fit, the longest has"):
        encode_split(GROUPS, tokenizer, 3)
    with pytest.raises(DataError, match="none of 0 examples is left"):
        encode_split([], tokenizer, 100)


def test_prompts_end_with_the_end_token_one_for_each_group(tokenizer: Tokenizer) -> None:
    prompts = encode_prompts(GROUPS, tokenizer, 100, 10)
    assert prompts == [[*tokenizer.encode(group.prompt), tokenizer.eos_id] for group in GROUPS]


def test_a_prompt_without_room_for_an_answer_is_an_error(tokenizer: Tokenizer) -> None:
    longest = max(len(ids) for ids in encode_prompts(GROUPS, tokenizer, 100, 10))
    assert encode_prompts(GROUPS, tokenizer, longest + 64, 64)
    with pytest.raises(DataError, match=r"prompt 1, 'name : A'…, has \d+ tokens; with 64 new ones"):
        encode_prompts(GROUPS, tokenizer, longest + 63, 64)

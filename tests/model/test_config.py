from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from torso.errors import ConfigError, WeightsError
from torso.model.config import SIZES, Cuts, GPT2Config
from torso.model.names import expected_shapes


def write(folder: Path, **settings: Any) -> Path:
    """A config.json of a GPT-2 with two layers; settings override."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2} | settings))
    return path


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_the_published_sizes_have_their_published_numbers_of_parameters(name: str, parameters: int) -> None:
    assert sum(map(math.prod, expected_shapes(SIZES[name]).values())) == parameters


@pytest.mark.parametrize(
    ("layers", "cuts"), [(1, (1, 1)), (2, (1, 1)), (3, (1, 2)), (4, (1, 3)), (5, (2, 3)), (12, (2, 10)), (48, (2, 46))]
)
def test_default_cuts_leave_two_blocks_at_either_end_and_one_below_five(layers: int, cuts: tuple[int, int]) -> None:
    found = Cuts.default(layers)
    assert (found.head_cut, found.tail_cut) == cuts
    assert [*found.head, *found.body, *found.tail] == list(range(layers))


@pytest.mark.parametrize(("head_cut", "tail_cut"), [(0, 0), (0, 4), (4, 4), (2, 2), (1, 3)])
def test_any_ordered_cuts_share_all_blocks_out(head_cut: int, tail_cut: int) -> None:
    cuts = Cuts(head_cut, tail_cut, 4)
    assert [*cuts.head, *cuts.body, *cuts.tail] == [0, 1, 2, 3]


@pytest.mark.parametrize(("head_cut", "tail_cut"), [(3, 2), (-1, 2), (0, 5), (5, 5)])
def test_cuts_out_of_order_are_an_error_that_names_them_and_the_rule(head_cut: int, tail_cut: int) -> None:
    with pytest.raises(ConfigError, match=rf"{head_cut}:{tail_cut} are out of order for 4 layers.*<= 4"):
        Cuts(head_cut, tail_cut, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_layer": 0}, "n_layer is 0. Give 1 or more"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"n_head": 5}, "n_embd 768 is no multiple of n_head 5"),
        ({"attn_pdrop": 1.0}, "attn_pdrop is 1.0. Give a number from 0 up to, not including, 1"),
        ({"resid_pdrop": -0.1}, "resid_pdrop is -0.1"),
        ({"embd_pdrop": math.nan}, "embd_pdrop is nan"),
    ],
)
def test_impossible_shapes_and_dropouts_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPT2Config(**settings)
    assert message in str(caught.value)


def test_a_config_is_read_as_transformers_writes_it(base: Path) -> None:
    config = GPT2Config.from_json(base / "config.json")
    assert (config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head) == (97, 64, 32, 2, 4)
    assert (config.inner, config.eos_token_id, config.layer_norm_epsilon) == (128, 96, 1e-5)


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = GPT2Config(n_layer=3, n_embd=16, n_head=2, n_inner=40, vocab_size=50, eos_token_id=7)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    found = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(found).__name__ == "GPT2Config"
    assert {name: getattr(found, name) for name in vars(config)} == vars(config)
    assert GPT2Config.from_json(tmp_path / "config.json") == config


def test_dropout_is_0_whatever_the_file_says(tmp_path: Path) -> None:
    config = GPT2Config.from_json(write(tmp_path, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1))
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "llama"}, "describes a model of type 'llama', expected 'gpt2'"),
        ({"model_type": None}, "describes a model of type None"),
        ({"activation_function": "relu"}, "activation_function = 'relu', expected 'gelu_new'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False, expected True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn = True"),
        ({"scale_attn_weights": False}, "scale_attn_weights = False"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"n_layer": "12"}, "has a value of a wrong kind"),
        ({"n_layer": None}, "has a value of a wrong kind"),
        ({"n_layer": 2.5}, "has a value of a wrong kind"),
        ({"n_layer": True}, "has a value of a wrong kind"),
        ({"n_inner": "40"}, "has a value of a wrong kind"),
        ({"layer_norm_epsilon": "small"}, "has a value of a wrong kind"),
        ({"eos_token_id": [1, 2]}, "has a value of a wrong kind"),
    ],
)
def test_what_is_not_a_plain_gpt2_is_refused_with_the_file(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, **settings)
    with pytest.raises(WeightsError) as caught:
        GPT2Config.from_json(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("[]", "of type 'list'"), (None, "cannot be read"), ("\xff", "not")]
)
def test_a_missing_or_broken_file_is_one_clear_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(WeightsError, match=message) as caught:
        GPT2Config.from_json(tmp_path / "config.json")
    assert "\n" not in str(caught.value)

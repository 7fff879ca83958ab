from __future__ import annotations

import pytest
import torch

from torso.randomness import DropoutKey, dropout, dropout_scope, hash64, normal, permutation, scaled_normal, uniform


def splitmix64(seed: int, count: int) -> list[int]:
    """SplitMix64 in plain integers (Steele, Lea, Flood 2014): the independent reference."""
    mask, out = (1 << 64) - 1, []
    for i in range(1, count + 1):
        z = (seed + i * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_uniform_numbers_are_splitmix64_of_the_key() -> None:
    expected = [(bits >> 11) * 2.0**-53 for bits in splitmix64(hash64("w", 3), 50)]
    assert uniform((5, 10), "w", 3).reshape(-1).tolist() == expected


def test_normal_numbers_have_mean_0_and_deviation_1() -> None:
    numbers = normal((100_000,), 1)
    assert abs(float(numbers.mean())) < 0.01
    assert abs(float(numbers.std()) - 1.0) < 0.01


def test_scaled_normal_numbers_do_not_depend_on_the_pieces_in_which_they_are_drawn() -> None:
    shape = (3, 25_001)
    assert torch.equal(scaled_normal(shape, 0.02, "weights", 1), (normal(shape, "weights", 1) * 0.02).float())


def test_a_permutation_holds_every_number_once_and_depends_on_its_key() -> None:
    assert sorted(permutation(1000, "shuffle", 1)) == list(range(1000))
    assert permutation(1000, "shuffle", 1) == permutation(1000, "shuffle", 1)
    assert permutation(1000, "shuffle", 1) != permutation(1000, "shuffle", 2)


def test_an_integer_and_its_text_are_different_keys() -> None:
    assert hash64(1) != hash64("1")


def test_a_mask_is_a_pure_function_of_key_and_site() -> None:
    x = torch.ones(64, 64)
    with dropout_scope(DropoutKey(1, 2, 3)):
        first, again, elsewhere = dropout(x, 0.5, "a"), dropout(x, 0.5, "a"), dropout(x, 0.5, "b")
    with dropout_scope(DropoutKey(1, 2, 4)):
        other = dropout(x, 0.5, "a")
    assert torch.equal(first, again)
    assert not torch.equal(first, elsewhere)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(p: float) -> None:
    with dropout_scope(DropoutKey(1, 2, 3)):
        kept = dropout(torch.ones(200_000), p, "a")
    assert abs(float(kept.mean()) - 1.0) < 0.02
    assert abs(float((kept == 0).float().mean()) - p) < 0.01


def test_outside_a_scope_nothing_is_dropped() -> None:
    x = torch.ones(8)
    assert dropout(x, 0.5, "a") is x
    with dropout_scope(DropoutKey(1, 1, 1)), dropout_scope(None):
        assert dropout(x, 0.5, "a") is x

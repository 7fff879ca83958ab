from __future__ import annotations

import torso.errors
from torso.errors import ConfigError, RequestError, TorsoError


def test_a_message_is_one_line_with_its_remedy() -> None:
    error = ConfigError("lora_rank is 0,\n expected 1 or more.", "Give --lora-rank 8.")
    assert str(error) == "lora_rank is 0, expected 1 or more. Give --lora-rank 8."


def test_what_was_asked_wrongly_exits_with_2_and_what_failed_with_1() -> None:
    classes = [c for c in vars(torso.errors).values() if isinstance(c, type) and issubclass(c, TorsoError)]
    wrong = [c for c in classes if issubclass(c, RequestError)]
    assert all(c.exit_code == 2 and issubclass(c, ValueError) for c in wrong)
    assert {c.exit_code for c in classes if c not in wrong} == {0, 1}


def test_the_drawn_tree_names_every_class() -> None:
    drawing = torso.errors.__doc__ or ""
    classes = [c for c in vars(torso.errors).values() if isinstance(c, type) and issubclass(c, TorsoError)]
    assert all(c.__name__ in drawing for c in classes)

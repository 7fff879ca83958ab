from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from torso.records import EpochRecord, StepRecord
from torso.report.progress import DecodingProgress, ProgressLine


@pytest.fixture
def play(step: Callable[..., StepRecord], epoch: Callable[..., EpochRecord]) -> Callable[[bool], str]:
    def run(terminal: bool) -> str:
        """30 steps of one second each, a message, an epoch's end; returns what was printed."""
        out, now = io.StringIO(), [0.0]
        console = Console(file=out, force_terminal=terminal, width=100)
        with ProgressLine(console, clock=lambda: now[0]) as progress:
            for number in range(1, 31):
                now[0] += 1.0
                progress.on_step(step(number), 60)
            progress.on_message("step 31 failed [and] was rolled back")
            progress.on_epoch(epoch(1, 30))
        return out.getvalue()

    return run


def test_without_a_terminal_there_is_a_plain_line_every_ten_seconds(play: Callable[[bool], str]) -> None:
    lines = [line for line in play(False).splitlines() if line.startswith("step ") and "/60" in line]
    assert [line.split()[1] for line in lines] == ["1/60", "11/60", "21/60"]
    assert "loss" in lines[1]
    assert "tokens/s" in lines[1]
    assert "49.0 s left" in lines[1]


def test_messages_and_epochs_stay_as_they_are(play: Callable[[bool], str]) -> None:
    text = play(False)
    assert "step 31 failed [and] was rolled back\n" in text
    assert "epoch 1 done: loss 1.6000, gradient norm 0.900, 5,118 tokens/s, 21.6 s, 177 MB sent\n" in text


def test_a_terminal_gets_one_line_that_is_rewritten(play: Callable[[bool], str]) -> None:
    text = play(True)
    assert "\x1b[" in text
    assert "left" in text


def test_a_roll_back_starts_the_averages_again(step: Callable[..., StepRecord]) -> None:
    progress = ProgressLine(Console(file=io.StringIO()), clock=lambda: 0.0)
    for number in (1, 2, 3, 2):
        progress.on_step(step(number), 10)
    assert progress.text(10).startswith("step 2/10")
    assert len(progress._recent) == 1


def test_decoding_says_now_and_then_how_far_it_is() -> None:
    out, now = io.StringIO(), [0.0]
    progress = DecodingProgress(40, Console(file=out, width=100), clock=lambda: now[0])
    for done in (10, 20, 30, 40):
        now[0] += 6.0
        progress(done)
    assert out.getvalue() == "decoded 20 of 40 inputs, 12.0 s left\n"

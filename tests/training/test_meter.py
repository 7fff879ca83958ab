from __future__ import annotations

from torso.parallel.group import Group
from torso.parallel.traffic import Traffic
from torso.training.meter import Meter, StepTotals
from torso.training.part import Update


class Talker:
    """A learner that only counts bytes."""

    def __init__(self) -> None:
        self.sent = 0

    def traffic(self) -> Traffic:
        return Traffic(sent=self.sent, received=2 * self.sent)


def test_bytes_of_a_save_between_two_steps_belong_to_neither() -> None:
    talker = Talker()
    meter = Meter(Group.solo(), talker)  # type: ignore[arg-type]
    found = []
    for step in (1, 2):
        talker.sent += 1000  # a save, or the opening of a job
        meter.start()
        talker.sent += step
        record = meter.step_record(step, 1, StepTotals(1.0, 1, 1, 1), Update(1.0, 1.0, 1e-3, skip=False), 1.0)
        found.append((record.bytes_sent, record.bytes_received_max))
    assert found == [(1, 2), (2, 4)]

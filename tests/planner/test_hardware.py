from __future__ import annotations

import pytest

from torso.errors import ConfigError
from torso.planner.hardware import DEVICES, LINKS, bytes_of, device_of, link_of


@pytest.mark.parametrize(
    ("text", "rate"), [("10Gbit/s", 1.25e9), ("100 Mbit/s", 12.5e6), ("3GB/s", 3e9), ("25Gbps", 3.125e9)]
)
def test_a_rate_is_read_in_bits_or_bytes(text: str, rate: float) -> None:
    assert link_of(text).bytes_per_second == rate


@pytest.mark.parametrize(("text", "size"), [("16GB", 16e9), ("16GiB", 16 * 2**30), ("512 MB", 512e6)])
def test_a_size_is_decimal_unless_it_says_otherwise(text: str, size: float) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "10", "fast", "10gbit", "-1Gbit/s", "0Gbit/s"])
def test_what_is_no_link_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(ConfigError, match=r"link is .*10Gbit/s"):
        link_of(text)


@pytest.mark.parametrize("text", ["", "16", "0GB", "lots"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"device_memory is .*16GB"):
        bytes_of(text)


def test_names_are_known_in_any_case_and_unknown_ones_are_refused() -> None:
    assert device_of("T4") is DEVICES["t4"]
    assert link_of("NVLink3") is LINKS["nvlink3"]
    with pytest.raises(ConfigError, match="no device is called 'tpu'"):
        device_of("tpu")

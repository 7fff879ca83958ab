from __future__ import annotations

from typing import Any

import pytest

from torso.errors import ConfigError
from torso.split.client.config import SplitConfig

NO_SERVERS = [
    "", "gpu-host:8700", "ftp://gpu-host", "http://", "http://:8700", "http://host:port", "http://host:99999",
    "http://host:0", "http://[::1", "http://[zz]:1",
]  # fmt: skip


@pytest.mark.parametrize("url", NO_SERVERS)
def test_a_server_that_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:8700"):
        SplitConfig(servers=("http://127.0.0.1:8700", url))


@pytest.mark.parametrize(
    "url", ["http://gpu-host:8700", "https://gpu.example.org", "http://[::1]:8700/", "http://10.0.0.1"]
)
def test_servers_are_named_by_their_url(url: str) -> None:
    assert SplitConfig(servers=(url,)).servers == (url,)


@pytest.mark.parametrize(
    "changes",
    [{"servers": ()}, {"clients": 0}, {"window": 0}, {"read_timeout_s": 0.0}, {"patience_s": -1.0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        SplitConfig(**changes)
    assert caught.value.remedy

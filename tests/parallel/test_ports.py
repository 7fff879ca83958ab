from __future__ import annotations

import socket

import pytest

from torso.errors import AddressInUseError
from torso.parallel.ports import check_free, local_url


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUseError, match=rf"127\.0\.0\.1:{port} .*--port"):
            check_free("127.0.0.1", port, 1)


def test_a_port_is_free_again_when_its_holder_has_gone() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    check_free("127.0.0.1", port, 1)


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(AddressInUseError, match=r"192\.0\.2\.1:8700 cannot be listened at"):
        check_free("192.0.2.1", 8700, 1)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8700"),
        ("0.0.0.0", "http://127.0.0.1:8700"),
        ("::", "http://[::1]:8700"),
        ("::1", "http://[::1]:8700"),
        ("gpu-host", "http://gpu-host:8700"),
    ],
)
def test_a_listener_of_this_machine_has_a_url(host: str, url: str) -> None:
    assert local_url(host, 8700) == url

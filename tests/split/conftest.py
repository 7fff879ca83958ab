from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.split.harness import Servers, base_folder
from tests.split.wire import Wire


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return base_folder(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[Servers]:
    """One worker; tests share it, each with jobs of its own."""
    with Servers(base, 1) as servers:
        yield servers


@pytest.fixture(scope="module")
def pair(base: Path) -> Iterator[Servers]:
    """A group of two workers."""
    with Servers(base, 2) as servers:
        yield servers


@pytest.fixture
def speak() -> Iterator[Callable[..., Wire]]:
    """Makes a new job on some servers; connections are closed at the end."""
    wires: list[Wire] = []

    def make(servers: Servers, **fields: object) -> Wire:
        ports = range(servers.settings.port, servers.settings.port + servers.settings.workers)
        wires.append(Wire([f"http://127.0.0.1:{port}" for port in ports], **fields))  # type: ignore[arg-type]
        return wires[-1]

    yield make
    for wire in wires:
        wire.close()


@pytest.fixture
def wire(server: Servers, speak: Callable[..., Wire]) -> Wire:
    """A new job, not yet opened, on one worker."""
    return speak(server)


@pytest.fixture
def pair_wire(pair: Servers, speak: Callable[..., Wire]) -> Wire:
    """The same on two workers."""
    return speak(pair)

"""Which worker gets what, and which server is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.split.client.stand_ins import Wiretap, put_between
from tests.split.harness import Recipe, Servers

from torso.adapters.config import AdapterConfig
from torso.errors import ServerMismatchError, TransportError
from torso.model.config import Cuts
from torso.parallel.ports import free_ports
from torso.split.client.router import Router
from torso.split.client.servers import check_before_start, find, info, worker_urls
from torso.split.client.transport import connect
from torso.split.protocol.messages import WorkerAddress

WORKERS = ["a", "b", "c"]


def spec(**changes: object) -> object:
    return dataclasses.replace(Recipe(folder=Path()).spec(), **changes)  # type: ignore[arg-type]


def test_requests_go_round_idle_workers() -> None:
    router = Router(WORKERS, 0)
    assert [router.take() for _ in range(6)] == ["a", "b", "c"] * 2


@pytest.mark.parametrize(("rank", "first"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_each_rank_begins_at_its_own_worker(rank: int, first: str) -> None:
    assert Router(WORKERS, rank).take() == first


def test_the_least_busy_worker_is_next() -> None:
    router = Router(WORKERS, 0)
    taken = [router.take() for _ in range(3)]
    router.give_back("b")
    assert taken == WORKERS
    assert router.take() == "b"


def test_a_request_for_one_worker_counts_as_its_load() -> None:
    router = Router(WORKERS, 0)
    assert [router.take("a"), router.take("a"), router.take("b")] == ["a", "a", "b"]
    assert [router.take(), router.take(), router.take()] == ["c", "b", "c"]


def test_several_micro_batches_are_in_flight_and_all_workers_get_some(
    tmp_path: Path, pair: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Wiretap()
    put_between(monkeypatch, network)
    before = [sum(held_requests(pair, rank).values()) for rank in (0, 1)]
    Recipe(folder=tmp_path / "run", servers=(pair.url,)).train(2)
    assert network.most_under_way > 1
    assert all(sum(held_requests(pair, rank).values()) > count for rank, count in enumerate(before))


def held_requests(servers: Servers, rank: int) -> dict[str, int]:
    import httpx

    port = servers.settings.port + rank
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith("torso_requests_total{")]
    counts = {line.split('"')[1]: int(line.rsplit(" ", 1)[1]) for line in lines}
    return {kind: count for kind, count in counts.items() if kind in ("forward", "backward")}


def test_the_first_server_that_answers_is_used(server: Servers) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)}"
    transport = connect((nobody, server.url), 5.0)
    assert find(transport, (nobody, server.url), Recipe(folder=Path()).spec()) == [server.url]
    transport.close()


def test_a_proxy_for_a_far_server_is_not_asked_for_this_machine(
    server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)}"
    monkeypatch.setenv("http_proxy", nobody)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    transport = connect((server.url, "http://far.example:8700"), 5.0)
    assert info(transport, server.url).workers
    with pytest.raises(TransportError, match="refused"):
        info(transport, "http://far.example:8700")
    transport.close()


def test_no_server_at_all_is_transient_for_a_run_and_a_wrong_request_before_its_start() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)}"
    transport = connect((nobody,), 5.0)
    with pytest.raises(TransportError, match="no body server answers"):
        find(transport, (nobody,), Recipe(folder=Path()).spec())
    with pytest.raises(ServerMismatchError, match="torso serve"):
        check_before_start(transport, (nobody,), Recipe(folder=Path()).spec())
    transport.close()


OTHER_ADAPTER = AdapterConfig(kind="lora", lora_rank=3, alpha=1.0)
MISMATCHES: list[tuple[dict[str, object], str]] = [
    ({"cuts": Cuts(1, 2, 4)}, "layers 1:3"),
    ({"cuts": Cuts(2, 3, 4)}, "needs 2:3"),
    ({"base_fingerprint": "0" * 64}, "other base weights"),
    ({"dtype": "fp16"}, "computes in fp32, bf16"),
    ({"arithmetic": {"torch": "0.4"}}, "torch: 0.4 here"),
]


@pytest.mark.parametrize(("changes", "words"), MISMATCHES, ids=lambda value: str(value)[:30])
def test_a_server_that_does_not_fit_is_refused_with_what_differs(
    server: Servers, changes: dict[str, object], words: str
) -> None:
    transport = connect((server.url,), 5.0)
    with pytest.raises(ServerMismatchError, match=words) as caught:
        find(transport, (server.url,), spec(**changes))  # type: ignore[arg-type]
    assert caught.value.remedy
    assert caught.value.exit_code == 2
    transport.close()


def test_another_version_is_refused(server: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = connect((server.url,), 5.0)
    answer = info(transport, server.url).model_copy(update={"version": "9.9"})
    transport.close()
    with pytest.raises(ServerMismatchError, match=r"runs Torso 9\.9"):
        Recipe(folder=Path()).spec().check(answer, server.url)
    spec(allow_inexact=True).check(answer, server.url)  # type: ignore[attr-defined]


def test_other_last_bits_can_be_allowed(server: Servers) -> None:
    transport = connect((server.url,), 5.0)
    allowed = spec(arithmetic={"torch": "0.4"}, allow_inexact=True)
    assert find(transport, (server.url,), allowed) == [server.url]  # type: ignore[arg-type]
    transport.close()


def test_workers_are_reached_at_the_host_under_which_the_server_was(pair: Servers) -> None:
    transport = connect((pair.url,), 5.0)
    answer = info(transport, pair.url)
    transport.close()
    port = pair.settings.port
    assert worker_urls("http://gpu:1", answer) == [f"http://gpu:{port}", f"http://gpu:{port + 1}"]
    assert worker_urls("https://[::1]:1", answer)[0] == f"https://[::1]:{port}"
    named = answer.model_copy(update={"workers": [WorkerAddress(rank=1, host="fe80::1", port=2), answer.workers[0]]})
    assert worker_urls("http://gpu:1", named) == [f"http://gpu:{port}", "http://[fe80::1]:2"]

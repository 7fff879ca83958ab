"""A worker's process: `python -m torso.split.server.rank SETTINGS.json`, started by the agent of `torso serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvicorn

from torso.parallel.arithmetic import set_threads
from torso.parallel.group import Group
from torso.parallel.ports import listen, local_url
from torso.parallel.rank import StopRequest, end_rank
from torso.split.server.app import create_app
from torso.split.server.config import ServerSettings
from torso.split.server.leader import Leader, Member
from torso.split.server.members import HttpMember
from torso.split.server.worker import Worker


def main(path: str, stop: StopRequest) -> None:
    """Serve until told to stop."""
    settings = ServerSettings.read(Path(path))
    set_threads(settings.threads)
    rank = int(os.environ.get("RANK", "0"))
    # Listening before the group forms: the leader may call its peers as soon as it exists.
    listener = listen(settings.host, settings.port + rank)
    listener.listen(1024)
    group = Group.from_environment(settings.group_timeout_s) if settings.workers > 1 else Group.solo()
    worker = Worker(settings, group)
    app = create_app(worker, make_leader(worker) if rank == 0 else None)
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=3, timeout_keep_alive=600, access_log=False
    )
    if stop():  # asked before uvicorn listens to signals
        return
    uvicorn.Server(config).run(sockets=[listener])


def make_leader(worker: Worker) -> Leader:
    """Rank 0's leader, with its peers at the ports after its own."""
    s = worker.settings
    timeout_s = s.hang_timeout_s + s.group_timeout_s  # by then a peer that hangs has noticed it itself
    members: list[Member] = [worker]
    members += [HttpMember(local_url(s.host, s.port + rank), s.secret, timeout_s) for rank in range(1, s.workers)]
    return Leader(worker, members)


if __name__ == "__main__":
    end_rank(lambda stop: main(sys.argv[1], stop))

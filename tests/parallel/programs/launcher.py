"""A command that launches ranks: `python -m launcher BEHAVIOUR FOLDER KEY=VALUE…`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torso.errors import TorsoError
from torso.parallel.launch import launch


def main(behaviour: str, folder: str, *settings: str) -> int:
    """Exit code of the command."""
    numbers: dict[str, Any] = {"num_ranks": 2, "threads": 1}
    numbers |= {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    progress = Path(folder) / "progress"
    if behaviour == "advance":
        numbers["progress"] = lambda: len(progress.read_text()) if progress.exists() else 0
    try:
        launch("ranks", [behaviour, folder], **numbers)
    except KeyboardInterrupt:
        return 0
    except TorsoError as error:
        print(f"torso: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

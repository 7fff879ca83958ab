"""`torso COMMAND …`: finds the command's file, and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

import torso
from torso.errors import StorageError, TorsoError

COMMANDS = {
    "serve": "lend the middle blocks of a model to training runs",
    "train": "train an adapter, whole or split",
    "plan": "what each strategy would need, and which one to take",
    "resume": "go on with a run to its recorded target",
    "evaluate": "perplexity, decoding and scores of a run",
    "generate": "text for one input",
    "score": "every metric of anybody's outputs",
    "digest": "one hash of a run's adapters, optimizer and step",
    "export": "a run's adapter for peft, or a merged model for transformers",
    "push": "an exported folder, or a run's adapter, to the Hugging Face hub",
    "report": "one HTML page of a run",
    "prepare": "articles into blocks of tokens",
    "compare": "several strategies side by side, measured on this machine",
    "verify": "put the promises to the test on this machine",
    "demo": "the main job on this machine, with its checks",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed while running, 2 the request was wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"torso {torso.__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"torso: error: no command is called {words[0]!r}. Choose among {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return _run(words[0], words[1:])


def _run(command: str, arguments: list[str]) -> int:
    # Large tensors in large pages, where the system leaves that to programs: torch looks for this once, when it is
    # first imported, and the processes that are started inherit it. New pages are what FSDP's gathers cost on a CPU.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        module = importlib.import_module(f"torso.cli.{command}")
        return int(module.main(arguments) or 0)
    except TorsoError as error:
        _say(f"{'error: ' if error.exit_code else ''}{error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("stopped")
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if not (error.filename or StorageError.is_full(error)):
            raise
        _say(f"error: {StorageError.of(error) if StorageError.is_full(error) else error}")
        return 1


def _say(text: str) -> None:
    """On stderr, which may lie on the very disk that is full."""
    with contextlib.suppress(OSError):
        print(f"torso: {text}", file=sys.stderr, flush=True)


def _usage() -> str:
    lines = ["usage: torso COMMAND [options]", "", "Split fine-tuning of GPT-2.", ""]
    lines += [f"  {name:10s} {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "`torso COMMAND --help` lists a command's options."])


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()

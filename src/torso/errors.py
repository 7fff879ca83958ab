"""Every exception that Torso raises on purpose.

    TorsoError                       failed while running              exit code 1
    ├── RequestError (ValueError)    what was asked for is wrong       exit code 2
    │   ├── ConfigError              a setting, or two that disagree
    │   ├── DataError                data sets, tokenizers, lines of a file
    │   ├── WeightsError             base weights, or a model that is not GPT-2
    │   ├── AdapterError             adapters and their files
    │   ├── RunDirectoryError        a run directory that cannot be used as asked
    │   ├── ServerMismatchError      a body server that holds something else than this run needs
    │   ├── MissingResourceError     something that set-up should have brought
    │   └── AddressInUseError        a port that somebody else holds
    ├── CheckpointError              a checkpoint that is damaged or could not be written
    ├── StorageError                 another file that could not be written: a full disk, say
    ├── GroupError                   a collective among the ranks of one group failed
    ├── PeerError                    another rank gave up; its own error tells why
    ├── LaunchError                  the ranks failed; the exit code is the failed rank's own
    ├── ServerError                  what a body server, or the way to it, can answer
    │   ├── TransportError           transient: trying again can help
    │   ├── StateLostError           the server no longer holds the job's state: roll back and seed again
    │   └── RefusedError             permanent: trying again cannot help
    └── Interrupted                  the user asked to stop

A message says what was wrong, with the value, and what was expected; `remedy` says what to do next.
"""

from __future__ import annotations

import errno

_WRONG_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)
"""Refusals of the system that room on the disk would not mend."""


class TorsoError(Exception):
    """Base of all of them; `str()` is one line for people."""

    exit_code = 1
    told = False
    """Whether another rank has the same error, and says it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.message.rstrip('.')}. {self.remedy}" if self.remedy else self.message
        return " ".join(text.split())


class RequestError(TorsoError, ValueError):
    """What was asked for is wrong; nothing was started."""

    exit_code = 2


class ConfigError(RequestError):
    """A setting is out of range, or two settings disagree."""


class DataError(RequestError):
    """A data set or tokenizer cannot be read or used."""


class WeightsError(RequestError):
    """Base weights are missing, misshapen, or not GPT-2's."""


class AdapterError(RequestError):
    """An adapter or its file cannot be used."""


class RunDirectoryError(RequestError):
    """A run directory cannot be used as asked."""


class ServerMismatchError(RequestError):
    """The body server holds something else than this run needs."""


class MissingResourceError(RequestError):
    """Something that the set-up should have brought is not there."""


class AddressInUseError(RequestError):
    """Somebody else listens on the port."""


class CheckpointError(TorsoError):
    """A checkpoint is damaged, or could not be written."""


class StorageError(TorsoError):
    """A file of a run could not be written: a full disk, say."""

    @classmethod
    def of(cls, error: OSError, path: object = None) -> StorageError:
        """The system's own error, with the file where it is known."""
        what = f"{path or error.filename} could not be written" if path or error.filename else "the disk refuses"
        remedy = "Make room or mend the disk, then go on with `torso resume` or the same command."
        if error.errno in _WRONG_PLACE:
            remedy = "Name a place where files may be written."
        return cls(f"{what}: {error.strerror or error}", remedy)

    @staticmethod
    def is_full(error: OSError) -> bool:
        """Whether no room is left, on the disk or for this user."""
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


class GroupError(TorsoError):
    """A collective among the ranks of one group failed."""


class PeerError(TorsoError):
    """Another rank of the group gave up; its own error tells why."""


class LaunchError(TorsoError):
    """The ranks failed; `exit_code` is that of the rank that failed for good."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = code


class ServerError(TorsoError):
    """A body server answered with a problem, or could not be reached; `code` is the problem's stable code."""

    def __init__(self, message: str, remedy: str = "", code: str = "") -> None:
        super().__init__(message, remedy)
        self.code = code


class TransportError(ServerError):
    """Transient: trying again can help."""

    retry_after_s = 0.0
    """How long the other side asked to wait at least."""


class StateLostError(ServerError):
    """The server no longer holds the job's state: roll back, seed again, replay."""


class RefusedError(ServerError):
    """Permanent: trying again cannot help."""


class Interrupted(TorsoError):
    """The user asked to stop; what was done is saved."""

    exit_code = 0

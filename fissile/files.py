"""Opening files that others may have put where they are: what is no regular file is refused, and nothing hangs.

In: a path. Out: a descriptor or the bytes of a regular file; or why a file or folder is not to be trusted. Invariant:
a pipe, a device, a socket or a folder is never waited for nor read.
"""

import os
import stat
from typing import BinaryIO

from fissile.errors import FileAccess, FileMissing

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}


def kind_of(status: os.stat_result) -> str:
    """What a file is that is no regular one; "" for a regular one."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "")


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """A regular file, opened to be read. FileMissing F501, FileAccess F502.

    follow: whether the last part of the path may be a symbolic link.
    """
    text = f"{str(path)!r}" if "\0" in str(path) else str(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise FileMissing("F501", f"{text} does not exist") from error
    except (OSError, ValueError) as error:
        raise FileAccess("F502", f"{text} cannot be read", reason=_reason(path, error)) from error
    try:
        if kind := kind_of(os.fstat(handle)):
            raise FileAccess("F502", f"{text} cannot be read", reason=f"it is {kind}, not a file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def stranger(status: os.stat_result) -> str:
    """Why somebody else than this user and root could have written a file or folder; "" if nobody could."""
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    return ""


def _reason(path: str | os.PathLike[str], error: OSError | ValueError) -> str:
    """What the system says; it has no good word for a socket or for a link that is not followed."""
    try:
        kind = kind_of(os.lstat(path))
    except (OSError, ValueError):
        kind = ""
    said = getattr(error, "strerror", None) or str(error)
    return f"it is {kind}, not a file" if kind else said

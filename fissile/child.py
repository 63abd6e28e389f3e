"""What the children that fissile starts do first: see that they end with the process that started them.

In: that process's number as the first argument. Out: nothing. Invariant: standard library alone, for the compiling
worker, too.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """Be killed when the process that started this one is: nobody else would end code that runs for long.

    That process says its number in the arguments: it may be gone already.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if sys.argv[1:] and os.getppid() != int(sys.argv[1]):
        sys.exit("whoever asked is gone")

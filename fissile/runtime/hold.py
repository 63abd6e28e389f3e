"""What one call has taken for itself: a frame, and the gang where it runs on several threads.

In: nothing. Out: a `Hold`. A signal handler may raise between any two steps of a call, also between taking something
and noting that it was taken. So nothing is handed over by a value that could be lost: whoever owns a thing is noted in
the thing, and `over = True`, one store that nothing interrupts, gives back all that the call has or is about to have.
Invariant: a hold belongs to one call, which sets `over` in a `finally` that begins right behind its making.
"""

from __future__ import annotations

from threading import Lock


class Hold:
    """The ownership of one call. over: whether it has ended, however it did. thread: whose call it is, for the gang.

    gate: locked while the call waits for its turn, None if it never did. The `heir` among its attributes, once there is
    one, has taken what this call had, or is `_GONE` once that is noted in the thing itself: what is over refers to no
    later call. Making a hold costs nothing: what differs from these values is set when it does.
    """

    over = False
    thread = 0
    gate: Lock | None = None


_GONE = Hold()


class Claimed:
    """Something that one call at a time has. holder: who had it last, and has it unless that is over."""

    holder: Hold

    def claim(self, hold: Hold) -> bool:
        """Take it for `hold`; False while another call has it. `setdefault` decides among those who try at once.

        Who was interrupted before `holder` was set is found as an heir.
        """
        last = self.holder
        while last.over:
            heir: Hold = vars(last).setdefault("heir", hold)
            if heir is hold:
                self.holder = hold
                vars(last)["heir"] = _GONE
                return True
            last = self.holder if heir is _GONE else heir
        return False

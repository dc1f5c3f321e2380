"""Named points at which a process can be made to die, freeze, fail or dawdle; for tests of exactly those moments.

``DULY_CRASH=POINT:ACTION[:NTH]`` arms one point of a process that the command line starts. Unarmed, a point is a
call of a function that does nothing: no lookup, no lock, no environment.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Mapping

from duly.errors import DefinitionError

VARIABLE = "DULY_CRASH"

POINTS: Mapping[str, str] = {
    "create.opened": "new jobs have their first revision, and no cursor yet",
    "edit.locked": "an edit holds its job's cursor",
    "edit.ended": "the old revision has ended, the new one is not there yet",
    "trigger.written": "a manual run's key is written, the run is not",
    "decide.claimed": "cursors are locked (by a worker, for durable jobs: and timers consumed), nothing is planned",
    "decide.planned": "plans are made, nothing is written",
    "decide.recorded": "cursors and verdicts are written, COMMIT is not sent",
    "decide.handed": "a decision that hands runs to this very process is committed, its worker does not know of them",
    "decide.committed": "the decision is committed, nothing of it is told or handed over",
    "claim.recorded": "runs are claimed, COMMIT is not sent",
    "claim.committed": "runs are claimed and committed, their tasks have not begun",
    "task.began": "an attempt was announced, its task's code has not begun",
    "effects.before": "a task's own writes are made, the fence is not asked",
    "effects.recorded": "effects and completion are written, COMMIT is not sent",
    "effects.committed": "effects and completion are committed, the worker does not know it",
    "step.before": "a step's function has returned, nothing of it is remembered",
    "step.recorded": "a transactional step's effects and its checkpoint are written, COMMIT is not sent",
    "step.committed": "a step is remembered, its task does not know it",
    "sleep.recorded": "the end of a sleep is remembered, the attempt has not ended",
    "wait.recorded": "a wait is remembered, and what was sent before is taken; the attempt has not ended",
    "signal.written": "a signal is written, its run is not woken, COMMIT is not sent",
    "signal.committed": "a signal is committed, its sender does not know it",
    "finish.before": "attempts have ended, nothing of it is written",
    "finish.completed": "a run of a durable job has ended, the timer of the next is not set, COMMIT is not sent",
    "finish.recorded": "ended attempts are recorded, COMMIT is not sent",
    "finish.committed": "ended attempts are recorded, the worker does not know it",
    "reap.picked": "lost attempts are found, nothing of it is written",
    "beat.before": "the lease is about to be renewed",
    "beat.after": "the lease is renewed",
    "leader.believed": "a process believes that it leads, its grant is not asked for",
    "leader.guarded": "its grant is locked for share, no cursor is",
    "grant.taken": "a lease is taken, the process does not know it",
    "grant.renewing": "the right to lead is about to be renewed",
    "grant.renewed": "the right to lead is renewed, the process does not know it",
    "grant.returning": "the process stops and has not given its leases back",
    "partition.made": "a month's partitions are made, COMMIT is not sent",
    "migrate.step": "a migration is applied, COMMIT is not sent",
}

_FORM = re.compile(
    r"(?P<point>[^:]*):(?P<action>kill|stop|raise|delay=(?P<seconds>\d+(\.\d+)?))(:(?P<nth>[1-9]\d*))?"
)


_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Crash(RuntimeError):
    """What an armed point raises: a fault of our own that nobody expects."""


def _nothing(name: str) -> None:
    """What a point does unless one is armed."""


point: Callable[[str], None] = _nothing
"""Pass a named point: ``crash.point("decide.claimed")``; always through the module, where :func:`arm` changes it."""

armed: str | None = None
"""What is armed in this process, as it was written; None is the usual case."""


def arm(text: str | None) -> None:
    """Arm the point that ``text`` names, or none.

    ``text`` is ``POINT:kill|stop|raise|delay=SECONDS[:NTH]``; the NTH passing counts in this process, by default
    the first, and no other. Raises DefinitionError when it says anything else.
    """
    global point, armed
    point, armed = (_armed(text), text) if text else (_nothing, None)


def _armed(text: str) -> Callable[[str], None]:
    found = _FORM.fullmatch(text)
    if found is None:
        raise DefinitionError(
            f"{VARIABLE}={text!r} cannot be read",
            hint="write POINT:kill, POINT:stop, POINT:raise or POINT:delay=SECONDS, and :NTH for a later passing",
        )
    wanted, nth = found["point"], int(found["nth"] or 1)
    if wanted not in POINTS:
        raise DefinitionError(
            f"{VARIABLE} names {wanted!r}, which is no crash point", hint=f"one of {', '.join(POINTS)}"
        )
    act = _act(wanted, found["action"], float(found["seconds"] or 0))
    lock, passed = threading.Lock(), 0

    def pass_by(name: str) -> None:
        nonlocal passed
        if name != wanted:
            return
        with lock:
            passed += 1
            now = passed == nth
        if now:
            act()

    return pass_by


def _act(wanted: str, action: str, seconds: float) -> Callable[[], None]:
    def fail() -> None:
        raise Crash(f"{VARIABLE} raises at {wanted}")

    if action == "raise":
        return fail
    if action in _SIGNALS:
        # To this very thread, which takes it before it goes on; sent to the process, another thread might take it,
        # and this one would run a little further.
        return lambda: signal.pthread_kill(threading.get_ident(), _SIGNALS[action])
    return lambda: time.sleep(seconds)  # the whole thread, as a page fault or a long collection would

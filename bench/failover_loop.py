"""The reference of ``bench failover``: a loop that many write for themselves, two of which share a session lock.

Whoever holds the lock sleeps to each instant and commits one row; the other one asks for the lock once a poll.
What falls due while nobody holds it is not fired by anybody.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

import psycopg

from bench.measure import statements


def main(url: str, n: int, poll: float) -> None:
    """Serve for ever, ``n`` instants a second."""
    sql = statements("failover")
    with psycopg.connect(url, autocommit=True) as connection:
        print("ready", flush=True)
        while not (connection.execute(sql["try_lock"]).fetchone() or (False,))[0]:
            time.sleep(poll)
        k = int(time.time() * n)
        while True:
            k += 1
            time.sleep(max(0.0, k / n - time.time()))
            connection.execute(sql["beat"], {"at": datetime.fromtimestamp(k / n, UTC)})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

"""Tasks whose effects are rows in the ledger's own database; read as an app by its path."""

from __future__ import annotations

import asyncio
import time

from duly import Duly, Run, every

app = Duly()
FAR = every(seconds=86400 * 3650)


@app.job(FAR, catchup="none", overlap="allow", name="waiting", max_lost=1000)
async def waiting(run: Run, number: int = 0) -> None:
    """Two rows that belong together, by an ``async def`` task."""
    async with run.transaction() as connection:
        await connection.execute("insert into effects values (%s, 'debit', %s)", (number, run.attempt))
        await asyncio.sleep(0.05)
        await connection.execute("insert into effects values (%s, 'credit', %s)", (number, run.attempt))
        run.result(number)


@app.job(FAR, catchup="none", overlap="allow", name="blocking", max_lost=1000)
def blocking(run: Run, number: int = 0) -> None:
    """The same by a plain function."""
    with run.transaction() as connection:
        connection.execute("insert into effects values (%s, 'debit', %s)", (number, run.attempt))
        time.sleep(0.05)
        connection.execute("insert into effects values (%s, 'credit', %s)", (number, run.attempt))
        run.result(number)

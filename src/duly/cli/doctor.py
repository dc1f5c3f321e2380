"""``duly doctor``: is what duly promises really in use on this database?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duly.cli.output import NO, document, line
from duly.cli.verbs import Options, clock, verb

if TYPE_CHECKING:
    from duly.cli.opening import Address
    from duly.doctor import Report


@verb("doctor", example="duly doctor --database postgresql://duly@db.example/duly")
def doctor(options: Options) -> int:
    """Probe the locking, the keys, the durability and the health of this database; changes nothing.

    One line a check: ok, warn or fail, what was seen, and what to do. Exit 1 when a check fails.
    """
    from duly.cli.loading import address as declared
    from duly.cli.opening import address, opened
    from duly.doctor import examine

    settings = options.settings()
    named = options.database is not None or options.data is not None

    async def asked(where: Address) -> Report:
        if where.embedded:
            async with opened(
                where, settings
            ):  # as every verb: the embedded server has this version's schema
                pass
        return await examine(where.url, clock=clock(), settings=settings)

    with address(options, settings, None if named else declared(options.apps(settings))) as where:
        report = asyncio.run(asked(where))
    if options.json:
        document(report.document())
    else:
        for each in report.checks:
            line(f"{each.state} {each.check}: {each.words}" + (f"; {each.hint}" if each.hint else ""))
    return 0 if report.ok else NO

"""``duly migrate`` and ``duly database``: the schema, and the embedded server for scripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from duly.cli.definitions import dry_run
from duly.cli.output import NO, document, line
from duly.cli.verbs import Options, Verbs, clock, verb

if TYPE_CHECKING:
    from duly.embedded import Server
    from duly.postgres import Database

database = Verbs(
    "database",
    short="The embedded PostgreSQL server: start, stop, info.",
    example="duly database start --json",
    places={
        "start": "duly.cli.database:start_server",
        "stop": "duly.cli.database:stop_server",
        "info": "duly.cli.database:server_info",
    },
)


@verb("migrate", example="duly migrate --database postgresql://db.example/duly")
@click.option("--print", "printed", is_flag=True, help="Print the statements, and do nothing.")
@click.option("--check", is_flag=True, help="Only say whether something is missing (exit 1).")
@click.option("--adopt", is_flag=True, help="This server has taken the place of the one it was copied from.")
@dry_run
def migrate(options: Options, printed: bool, check: bool, adopt: bool, dry_run: bool) -> int:
    """Bring the schema to this version, all or nothing. Forward only."""
    from duly.postgres import SCHEMA_VERSION, migrations

    if printed:
        steps = [{"version": step.version, "name": step.name, "sql": step.sql} for step in migrations()]
        if options.json:
            document({"version": SCHEMA_VERSION, "migrations": steps})
        else:
            for step in migrations():
                line(f"-- {step.name}\n{step.sql}")
        return 0
    names, written = _migrated(options, write=not (check or dry_run), adopt=adopt)
    if options.json:
        document({"version": SCHEMA_VERSION, "applied" if written else "missing": names})
    else:
        word = "applied" if written else "missing"
        line(
            "\n".join(f"{word} {name}" for name in names)
            or f"the schema is at {SCHEMA_VERSION}; nothing to do"
        )
    return NO if check and names else 0


def _migrated(options: Options, *, write: bool, adopt: bool = False) -> tuple[list[str], bool]:
    """The names of the steps that are missing, or that were applied just now."""
    import asyncio

    from duly.cli.opening import address
    from duly.postgres import Database

    settings = options.settings()

    async def work(url: str) -> list[str]:
        async with Database(url, clock=clock(), pool_size=2, name="duly migrate") as opened:
            if adopt and write:
                await opened.adopt_history()
            steps = await opened.migrate() if write else await opened.pending()
        return [step.name for step in steps]

    with address(options, settings) as where:
        return asyncio.run(work(where.url)), write


_STARTING = """url=$(duly database start --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["url"])')"""


@verb("start", example=_STARTING)
@dry_run
def start_server(options: Options, dry_run: bool) -> int:
    """Start the embedded server for scripts; returns when it accepts connections. It runs until `stop`."""
    from duly import embedded

    data = _data(options)
    _show(embedded.info(data) if dry_run else embedded.start(data), options.json)
    return 0


@verb("stop", example="duly database stop")
@dry_run
def stop_server(options: Options, dry_run: bool) -> int:
    """Stop the embedded server, whoever uses it."""
    from duly import embedded

    data = _data(options)
    if not dry_run:
        embedded.stop(data)
    _show(embedded.info(data), options.json)
    return 0


@verb("info", example="duly database info --json")
def server_info(options: Options) -> int:
    """Say where the embedded server is, and whether it runs. With --database, the same of that server."""
    if options.database is not None:
        _tell_server(_external(options, options.database), options.json)
        return 0
    from duly import embedded

    _show(embedded.info(_data(options)), options.json)
    return 0


def _data(options: Options) -> str:
    """The directory of the embedded server; a database that is named beside it is refused."""
    if options.database is not None:
        raise click.UsageError(
            "--database names another server; this verb is about the embedded one in --data"
        )
    settings = options.settings()
    if settings.database_url is not None and options.data is None and not options.json:
        sys.stderr.write(
            f"duly: note: this is about the embedded server in {settings.data}; the verbs use another one, "
            "which DULY_DATABASE_URL or duly.toml names (database info --database URL tells of it)\n"
        )
    return settings.data


def _external(options: Options, url: str) -> dict[str, Any]:
    """The same facts of a server that somebody else runs."""
    import asyncio

    from duly.postgres import Database, without_password

    async def ask(opened: Database) -> str:
        async with opened, opened.connection() as connection:
            row = await opened.row(connection, "postgres", "server")
        assert row is not None
        return str(row["version"])

    version = asyncio.run(ask(Database(url, clock=clock(), pool_size=1, name="duly info")))
    return {
        "url": without_password(url),
        "version": version,
        "embedded": False,
        "data": None,
        "pid": None,
        "bin": None,
        "running": True,
    }


def _show(server: Server, as_json: bool) -> None:
    _tell_server(
        {
            "url": server.url,
            "version": server.version,
            "embedded": True,
            "data": str(server.data),
            "pid": server.pid or None,
            "bin": str(server.bin),
            "running": server.running,
        },
        as_json,
    )


def _tell_server(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        document(facts)
        return
    for key, value in facts.items():
        if value is not None:
            line(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")

"""OUTSIDE DOOR: the command line. Thin verbs; each loads what it needs when it is called.

``duly next`` is started hundreds of times by scripts, so nothing here may load the database layer or the
display before a verb asks for it (docs/decisions/cli-package.md).
"""

from duly.cli.verbs import Verbs

main = Verbs(
    "duly",
    short="A scheduler of background jobs on PostgreSQL: every occurrence gets exactly one verdict.",
    example="duly up --app jobs.py",
    places={
        "up": "duly.cli.loops:up",
        "scheduler": "duly.cli.loops:scheduler",
        "worker": "duly.cli.loops:worker",
        "migrate": "duly.cli.database:migrate",
        "database": "duly.cli.database:database",
        "next": "duly.cli.next:next_instants",
        "jobs": "duly.cli.definitions:jobs",
        "runs": "duly.cli.runs:runs",
        "backfill": "duly.cli.backfills:backfill_job",
        "calendars": "duly.cli.calendars:calendars",
        "audit": "duly.cli.ask:audit",
        "explain": "duly.cli.ask:explain",
        "postmortem": "duly.cli.ask:postmortem",
        "cluster": "duly.cli.ask:cluster",
        "doctor": "duly.cli.doctor:doctor",
        "import": "duly.cli.crontabs:imports",
        "export": "duly.cli.crontabs:exports",
    },
)
"""The command ``duly``; calling it ends the process with the exit code of the verb."""

__all__ = ["main"]

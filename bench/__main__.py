"""``python -m bench VERB``: burst, steady, idle, catchup, failover, durable, tables; each beside its reference."""

from __future__ import annotations

import argparse
import json
import sys

from bench import burst, catchup, durable, failover, idle, steady, tables
from bench.measure import Document


def main(arguments: list[str] | None = None) -> int:
    """Run one measurement; ``--json`` prints one document, otherwise a table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    verbs = parser.add_subparsers(
        dest="bench", required=True, metavar="burst|steady|idle|catchup|failover|durable|tables"
    )
    for module in (burst, steady, idle, catchup, failover, durable, tables):
        verb = verbs.add_parser(
            module.__name__.rpartition(".")[2], help=(module.__doc__ or "").partition("\n")[0]
        )
        module.options(verb)
        verb.add_argument("--json", action="store_true", help="print one JSON document")
        verb.set_defaults(measure=module.measure)
    given = parser.parse_args(arguments)
    document: Document = given.measure(given)
    print(json.dumps(document.plain()) if given.json else document.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())

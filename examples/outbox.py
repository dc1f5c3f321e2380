"""Mail and webhooks that belong to a run, by a transactional outbox.

A letter cannot be unsent, so nothing outside is touched while the work may still be rolled back. The work writes
what is to be sent into a table, in the transaction that also ends its run: both are there, or neither. A second
job sends what lies there, with a key that is the same whenever it is sent again. So every letter is sent at
least once, and whoever receives it can tell the second from the first.

Try it: ``duly up --app examples/outbox.py`` with ``WEBHOOK=http://127.0.0.1:8000/`` or ``SMTP=127.0.0.1:1025``.
"""

from __future__ import annotations

import json
import os
import smtplib
import urllib.request
from email.message import EmailMessage
from typing import Any
from urllib.parse import quote

from duly import Duly, Run, every

app = Duly()

TABLES = """
create table if not exists invoices (number text primary key, cents integer not null);
create table if not exists outbox (
    key     text primary key,
    kind    text not null,
    content jsonb not null,
    sent_at timestamptz
);
create index if not exists outbox_unsent on outbox (key) where sent_at is null;
"""


@app.job("0 6 * * *", tz="Europe/Berlin", catchup="all", max_attempts=3)
async def invoice(run: Run) -> None:
    """Write yesterday's invoice and what is to be told about it: one commit, which also ends the run."""
    number = f"{run.data_interval.start:%Y-%m-%d}"
    async with run.transaction() as connection:
        await connection.execute(TABLES)
        await connection.execute("insert into invoices values (%s, %s)", (number, 4200))
        for kind in ("mail", "webhook"):
            await connection.execute(
                "insert into outbox (key, kind, content) values (%s, %s, %s)",
                (f"{run.idempotency_key}#{kind}", kind, json.dumps({"invoice": number})),
            )
        run.result({"invoice": number})


@app.job(every(seconds=5), catchup="latest", timeout=60)
def deliver(run: Run) -> None:
    """Send what lies there, oldest key first; what cannot be sent stays for the next time.

    The mark and the letter cannot be one commit. If this process dies in between, the letter is sent again
    under the same key.
    """
    sent, failed = 0, 0
    with run.transaction() as connection:
        connection.execute(TABLES)
        waiting = connection.execute(
            "select key, kind, content from outbox where sent_at is null order by key limit 100"
            " for update skip locked"
        ).fetchall()
        for key, kind, content in waiting:
            try:
                SENDERS[kind](key, content)
            except OSError as error:
                run.log.warning("%s stays in the outbox: %s", key, error)
                failed += 1
                continue
            connection.execute("update outbox set sent_at = clock_timestamp() where key = %s", (key,))
            sent += 1
        run.result({"sent": sent, "failed": failed})


def send_webhook(key: str, content: dict[str, Any]) -> None:
    """The receiver keeps the keys it has seen."""
    request = urllib.request.Request(
        os.environ.get("WEBHOOK", "http://127.0.0.1:8000/"),
        data=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


def send_mail(key: str, content: dict[str, Any]) -> None:
    """Mail programs show two letters with one Message-ID as one."""
    letter = EmailMessage()
    letter["From"], letter["To"] = "shop@example.org", "books@example.org"
    letter["Subject"] = f"Invoice {content['invoice']}"
    letter["Message-ID"] = f"<{quote(key, safe='')}@example.org>"
    letter.set_content("It is in the portal.")
    host, _, port = os.environ.get("SMTP", "127.0.0.1:1025").partition(":")
    with smtplib.SMTP(host, int(port), timeout=10) as server:
        server.send_message(letter)


SENDERS = {"mail": send_mail, "webhook": send_webhook}

"""Partitions are made ahead by whoever keeps house; where one cannot be made, nothing ends for it."""

from __future__ import annotations

from duly.postgres import Database

BY_HAND = """
do $$
declare
    part regclass;
begin
    for part in
        select inhrelid::regclass from pg_inherits
         where inhparent = 'duly.runs'::regclass and inhrelid <> 'duly.runs_default'::regclass
    loop
        execute format('drop table %s', part);
    end loop;
end $$;
create table duly.runs_by_hand (like duly.runs including defaults including constraints);
alter table duly.runs attach partition duly.runs_by_hand for values from ('2020-01-01Z') to ('2200-01-01Z');
"""
PARTS = """
select count(*) as parts from pg_inherits where inhparent = 'duly.runs'::regclass
"""


async def test_a_partition_that_somebody_made_by_hand_stops_no_housekeeping(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(BY_HAND)
    await database.make_partitions()
    async with database.connection() as connection:
        row = await (await connection.execute(PARTS)).fetchone()
    assert row == {"parts": 2}, "the one by hand and the default one"

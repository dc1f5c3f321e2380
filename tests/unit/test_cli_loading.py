"""``--app``: what is declared where, and what is said when it cannot be brought in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly.cli.loading import Loaded, address, load
from duly.cli.output import Several
from duly.errors import CatchupMissing, DefinitionError, DulyError

APP = "from duly import Duly\napp = Duly()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory of its own; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_DATABASE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(name: str, content: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(content)
    return name


def job(name: str, more: str = "") -> str:
    return f"@app.job('@daily', catchup='all'{more})\ndef {name}(): ...\n"


def loaded(*apps: str) -> Loaded:
    return load(apps, format="auto", zone="UTC")


def names(*apps: str) -> list[str]:
    return [each.name for each in loaded(*apps).jobs]


def error(*apps: str) -> DulyError:
    with pytest.raises(DulyError) as caught:
        loaded(*apps)
    return caught.value


def test_a_file_is_asked_for_app_and_else_for_its_only_one() -> None:
    assert names(write("a.py", f"{APP}{job('one')}other = Duly()\n")) == ["one"]
    assert names(write("b.py", "from duly import Duly\nmine = alias = Duly()\nmine.shell('two', 'x', "
                               "schedule='@daily', catchup='all')\n")) == ["two"]  # fmt: skip


def test_a_module_is_asked_for_its_attribute() -> None:
    write("shop/__init__.py", "")
    write("shop/jobs.py", f"{APP}{job('one')}\nclass Inner:\n    app = app\n")
    assert names("shop.jobs:app") == ["one"]
    assert names("shop.jobs:Inner.app") == ["one"]


def test_the_folder_of_a_file_comes_first_on_the_path() -> None:
    write("deep/beside.py", "WHEN = '@hourly'\n")
    write("deep/jobs.py", "from beside import WHEN\n" + APP + job("one"))
    assert names("deep/jobs.py") == ["one"]


def test_a_file_is_imported_once_however_often_it_is_named() -> None:
    write("once.py", f"{APP}{job('one')}print('imported')\n")
    assert names("once.py", "./once.py") == ["one"]
    assert names("once:app") == ["one"]


def test_two_files_of_one_name_are_two_modules() -> None:
    write("a/jobs.py", APP + job("one"))
    write("b/jobs.py", APP + job("two"))
    assert names("a/jobs.py", "b/jobs.py") == ["one", "two"]


def test_applications_and_crontabs_are_one_union() -> None:
    write("py.py", APP + job("one"))
    write("crontab", "# duly-default: catchup=none\n@daily /bin/two\n")
    found = loaded("py.py", "crontab")
    assert [each.name for each in found.jobs] == ["one", "two"]
    assert list(found.tasks) == ["one"]


@pytest.mark.parametrize(
    ("name", "content", "what", "line"),
    [
        ("none.py", "x = 1\n", "none.py has no Duly", None),
        ("many.py", "from duly import Duly\na = Duly()\nb = Duly()\n", "many.py has several: a, b", None),
        ("syntax.py", "x = 1\ndef broken(:\n", "syntax.py is not valid Python", 2),
        ("raises.py", "\n\n1 / 0\n", "raises.py cannot be imported: ZeroDivisionError: division by zero", 3),
        ("deep.py", "import json\n\njson.loads('{')\n", "deep.py cannot be imported: JSONDecodeError", 3),
        ("absent.py", "import not_there_at_all\n", "absent.py cannot be imported: ModuleNotFoundError", 1),
        ("leaves.py", "import sys\nsys.exit(0)\n", "leaves.py cannot be imported: SystemExit: 0", 2),
        ("open.py", f"{APP}@app.job('@daily')\ndef one(): ...\n", "catchup", 3),
        ("bare.py", f"{APP}@app.job\ndef one(): ...\n", "needs a schedule first, not 'one'", 3),
        ("task.py", f"{APP}@app.task\ndef one(): ...\n", "needs parentheses, not 'one'", 3),
        ("cron.py", f"{APP}\n@app.job('61 * * * *', catchup='all')\ndef one(): ...\n", "minute 61", 4),
        ("jobs.toml", "\n[[job]]\n", "a job without a name", 2),
    ],
)
def test_a_fault_of_an_app_names_its_place(name: str, content: str, what: str, line: int | None) -> None:
    found = error(write(name, content))
    assert isinstance(found, DefinitionError)
    assert what in found.message
    assert (found.file, found.line) == (name, line)


def test_a_fault_in_a_module_beside_names_that_one() -> None:
    write("beside.py", "\n1 / 0\n")
    write("uses.py", "import beside\n")
    found = error("uses.py")
    assert (found.file, found.line) == ("beside.py", 2)


def test_what_a_file_prints_is_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert names(write("chatty.py", f"print('hello')\n{APP}{job('one')}")) == ["one"]
    assert capsys.readouterr() == ("", "hello\n")


def test_an_answer_that_is_missing_keeps_its_class() -> None:
    assert isinstance(error(write("open.py", f"{APP}@app.job('@daily')\ndef one(): ...\n")), CatchupMissing)


@pytest.mark.parametrize(
    ("app", "what"),
    [
        ("absent.py", "there is no file absent.py"),
        ("absent/crontab", "there is no file absent/crontab"),
        ("not_there_at_all:app", "not_there_at_all:app cannot be imported: ModuleNotFoundError"),
        ("shop:nothing", "shop has no nothing"),
        ("shop:number", "shop:number is a int and not a Duly"),
        (".", ". is a directory"),
        ("jobs.yaml", "a .yaml file declares no jobs"),
    ],
)
def test_an_app_that_is_none_is_named(app: str, what: str) -> None:
    write("shop.py", "number = 1\n")
    write("jobs.yaml", "jobs:\n  - name: one\n")
    found = error(app)
    assert isinstance(found, DefinitionError)
    assert found.message.startswith(what)
    assert found.hint


def test_a_name_in_two_places_names_both() -> None:
    write("py.py", APP + job("report"))
    write("crontab", "# duly-default: catchup=none\n@daily /bin/report\n")
    assert error("py.py", "crontab").message == "job 'report' is declared in py.py and in crontab"
    write(
        "other.py",
        APP + job("report", ", name='x'").replace("@app.job", "@app.task(name='report')\n@app.job"),
    )
    assert "'report' is declared in py.py and in other.py" in error("py.py", "other.py").message


def test_every_line_of_a_crontab_that_is_refused_is_named() -> None:
    found = error(write("crontab", "@daily one\n@daily two\n@reboot three\n"))
    assert isinstance(found, Several)
    assert [(each.file, each.line) for each in found.errors] == [("crontab", n) for n in (1, 2, 3)]
    found = error(write("crontab", "@daily one\n"))
    assert isinstance(found, CatchupMissing)
    assert (found.file, found.line) == ("crontab", 1)


def test_the_address_in_the_code_is_used_and_two_are_refused() -> None:
    write("a.py", "from duly import Duly\napp = Duly('postgresql://a/x')\n")
    write("b.py", "from duly import Duly\napp = Duly('postgresql://b/x')\n")
    assert address(["a.py"]) == loaded("a.py").url == "postgresql://a/x"
    assert "a.py and b.py name two databases" in error("a.py", "b.py").message
    assert address([write("crontab", "")]) is None


def test_the_settings_in_the_code_are_used() -> None:
    write("a.py", "from duly import Duly, Settings\napp = Duly(settings=Settings(shutdown_grace=5))\n")
    settings = loaded("a.py").settings
    assert settings is not None
    assert settings.shutdown_grace == 5

"""The command line: data on stdout, talk on stderr, exit codes that scripts can rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import coterie
from coterie.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_migrate_plans_then_applies_then_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    code, out, _ = run(capsys, "migrate", "--url", url)
    assert (code, out.splitlines()[0].split()[:4]) == (0, ["would", "migrate", "0", "→"])
    assert "  0001_pre_ground" in out.splitlines()
    code, out, _ = run(capsys, "migrate", "--url", url, "--apply")
    assert (code, out.split()[0]) == (0, "migrated")
    code, out, _ = run(capsys, "migrate", "--url", url, "--apply")
    assert code == 0
    assert "is current" in out


@pytest.mark.postgres
def test_o2_migrate_lets_a_role_send_from_sql_and_refuses_what_it_cannot(
    empty_postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, role = empty_postgres_url, urlsplit(empty_postgres_url).username or ""
    code, _, err = run(capsys, "migrate", "--url", url, "--grant-send", role)
    assert (code, "has no functions to send with yet" in err) == (2, True)
    assert run(capsys, "migrate", "--url", url, "--apply")[0] == 0
    code, out, _ = run(capsys, "migrate", "--url", url, "--grant-send", role)
    assert (code, out.split("   ")[0]) == (0, f"role {role} may send from SQL")
    code, out, _ = run(capsys, "migrate", "--url", url, "--grant-send", role, "--json")
    assert (code, json.loads(out)["granted"]) == (0, role)
    code, _, err = run(capsys, "migrate", "--url", url, "--grant-send", "public")
    assert (code, "has no such role" in err) == (2, True)
    code, _, err = run(capsys, "migrate", "--url", url, "--grant-send", role, "--apply")
    assert (code, "--grant-send is given with what migrates" in err) == (2, True)
    code, _, err = run(capsys, "migrate", "--url", f"sqlite:///{tmp_path}/a.db", "--grant-send", role)
    assert (code, "coterie alone writes it" in err) == (2, True)


def test_migrate_prints_sql_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    code, out, _ = run(capsys, "migrate", "--url", url, "--sql")
    assert code == 0
    assert "-- 0001_pre_ground" in out
    assert "create table" in out.lower()
    code, out, _ = run(capsys, "migrate", "--url", url, "--json")
    assert json.loads(out)["pending"][0] == "0001_pre_ground"
    assert code == 0


def test_config_shows_every_setting_its_value_and_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_HEARTBEAT", "10s")
    monkeypatch.setenv("COTERIE_URL", "postgresql://app:hunter2@db.internal/app")
    code, out, _ = run(capsys, "config")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert rows["heartbeat"] == ["heartbeat", "10s", "COTERIE_HEARTBEAT"]
    assert rows["shards"] == ["shards", "100", "default"]
    assert "hunter2" not in out
    code, out, _ = run(capsys, "config", "--json")
    found = {row["name"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert found["heartbeat"] == ("10s", "COTERIE_HEARTBEAT")
    assert "hunter2" not in out


def test_a_wrong_question_is_exit_2_with_error_and_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "nonsense")[0] == 2
    monkeypatch.setenv("COTERIE_HEARTBEAT", "30")
    code, out, err = run(capsys, "config")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        'error: COTERIE_HEARTBEAT is "30": a duration needs a unit',
        'hint:  write "30s" (also: 250ms, 10m, 1h30m)',
    ]


def test_nobody_answering_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "migrate", "--url", "postgresql://app:hunter2@127.0.0.1:1/app")
    assert (code, out) == (3, "")
    assert err.startswith("error: cannot connect to postgresql://app@127.0.0.1:1/app")
    assert "hunter2" not in err


def test_help_imports_neither_drivers_nor_storage() -> None:
    program = (
        "import sys\nfrom coterie.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'asyncpg', 'apsw', 'rich', 'msgspec', 'starlette', 'coterie.cluster'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_public_names_are_sorted_and_there() -> None:
    assert coterie.__all__ == sorted(coterie.__all__)
    assert all(hasattr(coterie, name) for name in coterie.__all__)

"""Calls over HTTP to real processes, by a client that goes by the published document (O4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from coterie.testing import processes
from tests.cluster.seat_cluster import STEADY
from tests.cluster.test_probes import url_of

PROGRAM = Path(__file__).with_name("http_call_program.py")
TOKEN = "calls-token-of-these-tests"
PATIENCE_S = 60.0
OPERATIONS = 15
"""Six methods, called and sent; two of a workflow, one of results; streams are none."""


@pytest.mark.parametrize("examples", [2, pytest.param(200, marks=pytest.mark.nightly)])
async def test_whatever_is_called_every_answer_is_one_that_the_document_has(tmp_path: Path, examples: int) -> None:
    """No argument, id, key or option that fits the document or does not leads to an answer outside of it."""
    url = f"sqlite:///{tmp_path}/coterie.db"
    variables = {"COTERIE_HTTP_CALLS": "Shelf,workflow:fill", "COTERIE_HTTP_CALLS_TOKEN": TOKEN, "COTERIE_SHARDS": "4"}
    async with processes(PROGRAM, runners=1, url=url, env={**STEADY, **variables}, ready=url_of) as cluster:
        served = url_of(cluster.runners[0])
        assert served is not None
        tool = str(Path(sys.executable).with_name("schemathesis"))
        command = [tool, "run", f"{served}/openapi.json", "--url", served, "-H", f"Authorization: Bearer {TOKEN}"]
        command += ["--include-path-regex", "^/api/(call|send|result|workflows)/"]
        # What Python's types accept beyond their JSON schema (an integer written 1.0) is no failure of the surface.
        command += ["--exclude-checks", "positive_data_acceptance,negative_data_rejection,unsupported_method"]
        command += ["--max-examples", str(examples), "--seed", "1", "--no-color", "--generation-database", "none"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Tested: {OPERATIONS}" in done.stdout, done.stdout
        async with httpx.AsyncClient(base_url=served, timeout=PATIENCE_S) as http:
            assert (await http.get("/live")).status_code == 200
        log = "\n".join(cluster.runners[0].log)
        assert "an answer to" not in log, log
        assert TOKEN not in log

"""What the web shows of real clusters: mounted in another application, as a runner and as a client (H3)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount

from coterie import Cluster, Leader, PersistenceError, Tick, web
from coterie.web import cluster_view
from coterie.web.openapi import document
from tests.unit.cli.command_runner import until_told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT_S = 120.0  # for what takes a fraction of a second on an idle machine


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(f"sqlite:///{tmp_path}/seen.db", runner_name="anna", shards=3)

    @made.singleton("importer", every="1h")
    async def importer(leader: Leader[None]) -> None:
        pass

    @made.cron("report", "@every 1h")
    async def report(tick: Tick) -> None:
        pass

    return made


@asynccontextmanager
async def looking_at(cluster: Cluster, *, client: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in which the cluster's is mounted."""
    app = Starlette(routes=[Mount("/coterie", web.app(cluster))])
    transport = httpx.ASGITransport(app, client=(client, 50_000))
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(transport=transport, base_url=f"http://{client}/coterie/") as http,
    ):
        yield http


async def probes(http: httpx.AsyncClient) -> dict[str, int]:
    return {path: (await http.get(path)).status_code for path in ("live", "startup", "ready")}


async def unready(http: httpx.AsyncClient) -> str:
    answer = await http.get("ready")
    assert answer.status_code == 503
    return str(answer.json()["reasons"][0]["problem"])


async def test_the_probes_through_the_life_of_a_runner(cluster: Cluster) -> None:
    async with looking_at(cluster) as http:
        assert await probes(http) == {"live": 200, "startup": 503, "ready": 503}
        assert await unready(http) == "it is not started"
        async with cluster:
            await cluster.ready(timeout="2m")
            assert await probes(http) == {"live": 200, "startup": 200, "ready": 200}
        assert await probes(http) == {"live": 200, "startup": 200, "ready": 503}
        assert await unready(http) == "it is draining"


async def test_while_it_starts_the_probes_say_what_is_missing(cluster: Cluster) -> None:
    opened = asyncio.Event()

    @cluster.setup
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        await opened.wait()
        yield

    async with looking_at(cluster) as http:
        starting = asyncio.create_task(cluster.start())
        while "setup" not in await unready(http):
            await asyncio.sleep(0.005)
        assert await probes(http) == {"live": 200, "startup": 503, "ready": 503}
        opened.set()
        await starting
        await cluster.ready()
        assert await probes(http) == {"live": 200, "startup": 200, "ready": 200}
        await cluster.stop()


async def test_it_is_unready_from_the_first_moment_of_its_drain(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(**_: object) -> None:
        raise AssertionError("nobody needs to be asked")

    closing, closed = asyncio.Event(), asyncio.Event()

    @cluster.setup
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        yield
        closing.set()
        await closed.wait()

    async with looking_at(cluster) as http:
        await cluster.start()
        await cluster.ready()
        monkeypatch.setattr(cluster._acting().collector, "recent", never)  # whatever the database says
        stopping = asyncio.create_task(cluster.stop())
        await asyncio.sleep(0)
        assert await probes(http) == {"live": 200, "startup": 200, "ready": 503}
        await closing.wait()
        assert await probes(http) == {"live": 200, "startup": 200, "ready": 503}
        closed.set()
        await stopping


async def test_a_client_is_ready_while_it_is_connected(cluster: Cluster) -> None:
    async with looking_at(cluster) as http:
        async with cluster.connect():
            assert await probes(http) == {"live": 200, "startup": 200, "ready": 200}
            assert (await http.get("health")).json()["status"] == "unhealthy"  # there are no runners
            assert (await http.get("metrics")).status_code == 200
        assert (await probes(http))["ready"] == 503


async def test_health_before_the_start_and_after_the_end(cluster: Cluster) -> None:
    async with looking_at(cluster) as http:
        for _ in range(2):
            answer = await http.get("health")
            assert answer.status_code == 503
            assert answer.json()["status"] == "unhealthy"
            async with cluster:
                pass


async def test_health_is_what_the_document_promises(cluster: Cluster) -> None:
    """With a runner, a singleton and a cron in it; unknown fields would not be described."""
    described = document("1")
    async with looking_at(cluster) as http, cluster:
        await cluster.ready()
        while not (told := (answer := await http.get("health")).json())["singletons"][0]["runs"]:
            await asyncio.sleep(0.01)
    schemathesis.openapi.from_dict(described)["/health"]["GET"].validate_response(answer)
    parts = described["components"]["schemas"]["Health"]["properties"]
    assert told.keys() == parts.keys()
    assert told["runners"]["list"][0].keys() == parts["runners"]["properties"]["list"]["items"]["properties"].keys()
    for name in ("singletons", "crons"):
        assert told[name][0].keys() == parts[name]["items"]["properties"].keys()


async def test_metrics_are_what_prometheus_reads(cluster: Cluster) -> None:
    async with looking_at(cluster) as http, cluster:
        await cluster.ready()
        answer = await http.get("metrics")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"coterie_runners", "coterie_shards", "coterie_loop_lag_seconds"} <= names


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_a_database_that_is_away_costs_readiness_and_nobody_waits_for_it(
    cluster: Cluster, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liveness is local. The last facts count until they are too old."""

    async def away() -> Any:
        if how == "hangs":
            await asyncio.Event().wait()
        raise PersistenceError(doing="reading", problem="connection refused", outcome="unreachable")

    monkeypatch.setattr(cluster_view, "PROBED_S", 0.1)
    monkeypatch.setattr(cluster_view, "FRESH_S", 0.1)
    async with looking_at(cluster) as http, cluster:
        await cluster.ready()
        assert await probes(http) == {"live": 200, "startup": 200, "ready": 200}
        here = cluster._acting()
        with monkeypatch.context() as patch:
            patch.setattr(here.storage, "view", away)
            assert await probes(http) == {"live": 200, "startup": 200, "ready": 200}
            here.collector._last_ns -= 60 * 10**9
            assert await probes(http) == {"live": 200, "startup": 200, "ready": 503}
            assert "the database was last read 6" in await unready(http)
            assert (await http.get("metrics")).status_code == 200
        while (await probes(http))["ready"] != 200:  # whoever hung shares the look that began then
            here.collector._reading = None


async def test_many_who_ask_at_once_cost_one_look(cluster: Cluster) -> None:
    async with looking_at(cluster) as http, cluster:
        await cluster.ready()
        looks = 0
        here = cluster._acting()
        view = here.storage.view

        async def counted() -> Any:
            nonlocal looks
            looks += 1
            return await view()

        here.collector._last_ns -= 60 * 10**9
        here.storage.view = counted  # type: ignore[method-assign]
        answers = await asyncio.gather(*(http.get("health") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert looks <= 4, "one look, which reads it for runners, singletons and crons"


async def test_mounted_elsewhere_the_same_rules_hold(cluster: Cluster) -> None:
    """By the addresses of the connection, whoever serves."""
    async with cluster:
        await cluster.ready()
        async with looking_at(cluster, client="10.0.0.7") as http:
            assert (await http.get("ready")).json() == {"status": "ready"}
            assert (await http.get("health")).status_code == 401
            assert (await http.get("metrics")).status_code == 401
        async with looking_at(cluster) as http:
            assert (await http.get("health", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.parametrize(("listen", "serves"), [("127.0.0.1:0", True), (None, False)])
def test_run_serves_unless_http_is_off(
    tmp_path: Path, listen: str | None, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("coterie.main.run", lambda *_, beside, **__: given.append(beside))
    Cluster(f"sqlite:///{tmp_path}/run.db", http_listen=listen).run()
    assert (given[0] is not None) is serves


def test_whoever_serves_nothing_does_not_load_it() -> None:
    """`import coterie`, and a runner or client of its own, stay as light as they were."""
    heavy = {"starlette", "uvicorn", "prometheus_client", "coterie.web"}
    code = f"import sys, coterie, coterie.cluster, coterie.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"


async def test_a_view_of_a_running_cluster(cluster: Cluster) -> None:
    """All pages from one gathering, which those who ask within a second share."""
    async with cluster, looking_at(cluster) as http:
        await cluster.ready()
        await until_told(cluster)
        told = (await http.get("api/view")).json()
        again = (await http.get("api/view?pages=overview")).json()
    data = told["data"]
    assert (told["runner"], told["revision"]) == ("anna", 1)
    assert [each["name"] for each in data["runners"]] == ["anna"]
    assert data["runners"][0]["crons"] == ["report"]
    assert (data["overview"]["shards"], data["overview"]["owned_shards"]) == (3, 3)
    assert [each["owner"] for each in data["shards"]["shards"]] == ["anna"] * 3
    assert [each["leader"] for each in data["singletons"]] == ["anna"]
    assert [each["schedule"] for each in data["cron"]] == ["@every 1h"]
    assert (data["entities"], data["messages"]["dead"], data["workflows"]) == ([], 0, [])
    assert again["data"].keys() == {"overview"}
    assert again["revision"] == 2
    assert again["at"] >= told["at"], "the same facts, unless the machine was slow"

"""A shop in an application of its own, with the page of its cluster at /coterie: an order is approved there.

python examples/page.py serve                  # then open http://127.0.0.1:8000/coterie, until Ctrl-C
coterie run examples/page.py --workers 2       # in the same folder: two more runners, watch the shards move
python examples/page.py                        # asks what a browser asks, approves an order and ends
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from coterie import Cluster, Entity, Leader, MessageDead, Retry, Tick, Workflow, rpc, web

ORDERS, ROWS = 5, 20_000

cluster = Cluster("sqlite:///shop.db", http_listen="127.0.0.1:0", shards=60)
chance = random.Random()


@dataclass
class Stock:
    pieces: int = 40


@cluster.entity(retry=Retry(attempts=2))
class Article(Entity[Stock]):
    @rpc
    async def pieces(self) -> int:
        return self.state.pieces

    @rpc(persisted=True, key="order")
    async def take(self, order: str, pieces: int) -> int:
        if pieces > self.state.pieces:
            raise ValueError(f"{order}: only {self.state.pieces} pieces are left")  # a dead letter: edit it on the page
        self.state.pieces -= pieces
        return self.state.pieces


@dataclass
class Approval:
    approved: bool
    by: str


tried: set[str] = set()


async def charge(order: str) -> str:
    await asyncio.sleep(0.3)  # stands for a payment, which fails at first
    if order not in tried:
        tried.add(order)
        raise ConnectionError("payments.internal:443 does not answer")
    return f"payment for {order}"


async def refund(payment: str) -> str:
    return f"{payment} is paid back"


async def pack(order: str) -> str:
    await asyncio.sleep(0.2)
    return f"{order} is on its way"


@cluster.workflow
async def checkout(workflow: Workflow, order: str) -> str:
    payment = await workflow.options(retry=Retry(base="500ms")).step("charge", charge, order)
    workflow.compensate("refund", refund, payment)
    await workflow.sleep("1s", name="time to think")
    approval = await workflow.deferred("approval", Approval).wait()
    if not approval.approved:
        return f"{order} was refused by {approval.by}"
    return await workflow.step("pack", pack, order)


@dataclass
class Progress:
    last_row: int = 0


@cluster.singleton("importer", state=Progress)
async def importer(leader: Leader[Progress]) -> None:
    while True:
        async with leader.update() as state:
            state.last_row = state.last_row % ROWS + 10
        leader.heartbeat("rows", done=leader.state.last_row, total=ROWS)
        await cluster.ref(Article, f"article-{chance.randrange(30)}").pieces()
        await leader.sleep("200ms")


@cluster.singleton("reindexer", every="5s")
async def reindexer(_: Leader[None]) -> None:
    await asyncio.sleep(0.1)


@cluster.cron("invoices", "@every 10s")
async def invoices(_: Tick) -> None:
    await asyncio.sleep(chance.uniform(0.5, 4))


@cluster.cron("cleanup", "@every 20s", retry=Retry.never)
async def cleanup(_: Tick) -> None:
    await asyncio.sleep(1)
    if chance.random() < 0.3:
        raise TimeoutError("files.internal did not answer within 1s")


@cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich")
async def nightly(_: Tick) -> None:
    await asyncio.sleep(1)


async def order(request: Request) -> Response:
    """What the shop itself does: a customer orders something."""
    number = request.path_params["number"]
    await cluster.start_workflow(checkout, number, id=number)
    return JSONResponse({"order": number})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with cluster.lifespan(app):
        for number in range(ORDERS):
            await cluster.start_workflow(checkout, f"order-{number}", id=f"order-{number}")
            await cluster.kv.set(f"orders/order-{number}", {"customer": f"customer-{number}", "cents": 500 * number})
            with suppress(MessageDead):  # since an earlier start
                await cluster.send(cluster.ref(Article, f"article-{number}").take(f"order-{number}", 15 * number))
        yield


app = Starlette(
    routes=[Route("/orders/{number}", order, methods=["POST"]), Mount("/coterie", web.app(cluster))],
    lifespan=lifespan,
)


# ── what a browser does ─────────────────────────────────────────────────────────────────────────────────────────────


def ask(url: str, body: Any = None, **headers: str) -> Any:
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def approve(page: str) -> None:
    """Find what the first order waits for, and give it: as the form of the page does."""
    run = f"{page}/api/workflow?name=checkout&id=order-0"
    until_s = time.perf_counter() + 60
    while not (waits := [each for each in ask(run)["waits"] if each["kind"] == "deferred"]):
        assert time.perf_counter() < until_s, "the order waits for nothing"
        time.sleep(0.1)
    headers = {
        "Content-Type": "application/json",
        "Origin": page.removesuffix("/coterie"),
        "X-Coterie-Act": ask(f"{page}/api/session")["token"],
    }
    act = {"token": waits[0]["token"], "value": {"approved": True, "by": "bob"}}
    print("will be done:", ask(f"{page}/api/acts/resolve?preview=1", act, **headers)["will"])
    print("is done:     ", ask(f"{page}/api/acts/resolve", act, **headers)["done"])
    while (found := ask(run))["line"]["status"] != "done":
        assert time.perf_counter() < until_s, "the order is not done"
        time.sleep(0.1)
    print("the order:   ", found["result"])
    row = ask(f"{page}/api/activity")["rows"][0]
    print("the record:  ", row["who"], row["act"], row["what"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            command = [sys.executable, str(Path(__file__).resolve()), "serve", "0"]
            shop = subprocess.Popen(command, cwd=folder, stderr=output)
        try:
            until_s = time.perf_counter() + 60
            while not (found := re.search(r"running on (http://\S+)", log.read_text())):
                assert shop.poll() is None, log.read_text()
                assert time.perf_counter() < until_s, log.read_text()
                time.sleep(0.05)
            ask(f"{found[1]}/orders/order-77", {})
            approve(f"{found[1]}/coterie")
        finally:
            shop.terminate()
            shop.wait(timeout=60)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvicorn.run(app, port=int(sys.argv[2]) if sys.argv[2:] else 8000, access_log=False)
    else:
        main()

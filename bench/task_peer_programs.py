"""A task that does nothing, in other task queues; run by the Python of an environment that has one, without coterie.

`python task_peer_programs.py celery send URL` prepares the database, then reads numbers of jobs from its input; for
each it sends so many, waits until all are over, and prints how many seconds that took. With `work` it is a worker.
Both say "ready". What their documentation says about speed is followed: batches where there are any, a hundred jobs
at once.
"""

# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

AT_ONCE, BATCH, LOOK_S = 100, 1_000, 0.01


def main() -> None:
    name, role, url = sys.argv[1:]
    peer = PEERS[name](url)
    if asyncio.iscoroutinefunction(peer.send):
        asyncio.run(_work_async(peer) if role == "work" else _send_async(peer))
    elif role == "work":
        peer.work(ready)
    else:
        peer.prepare()
        ready()
        for line in sys.stdin:
            began = time.perf_counter()
            peer.send(int(line))
            while peer.left():
                time.sleep(LOOK_S)
            print(time.perf_counter() - began, flush=True)


def ready() -> None:
    print("ready", flush=True)


async def _work_async(peer) -> None:
    await peer.open()
    await peer.work(ready)


async def _send_async(peer) -> None:
    await peer.open()
    await peer.prepare()
    ready()
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await peer.send(int(line))
        while await peer.left():
            await asyncio.sleep(LOOK_S)
        print(time.perf_counter() - began, flush=True)


class PgQueuer:
    """Rows are deleted when they are done; it keeps a log, and no results."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        import asyncpg
        from pgqueuer import PgQueuer as Queue
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        self._session = await asyncpg.connect(self._url)
        self._queue = Queue(AsyncpgDriver(self._session))
        self._queries = Queries(AsyncpgDriver(self._session))

    async def prepare(self) -> None:
        await self._queries.install()

    async def work(self, ready) -> None:
        @self._queue.entrypoint("nothing")
        async def nothing(job) -> None:
            del job

        ready()
        await self._queue.run(batch_size=AT_ONCE)

    async def send(self, count: int) -> None:
        for begin in range(0, count, BATCH):
            size = min(BATCH, count - begin)
            await self._queries.enqueue(["nothing"] * size, [b"1"] * size, [0] * size)

    async def left(self) -> int:
        return await self._session.fetchval("select count(*) from pgqueuer where status in ('queued', 'picked')")


class Procrastinate:
    """Rows stay when they are done, without a result."""

    def __init__(self, url: str) -> None:
        import procrastinate

        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

        @self._app.task(queue="bench", name="nothing")
        async def nothing(number: int) -> None:
            del number

        self._task = nothing

    async def open(self) -> None:
        await self._app.open_async()

    async def prepare(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    async def work(self, ready) -> None:
        ready()
        await self._app.run_worker_async(concurrency=AT_ONCE)

    async def send(self, count: int) -> None:
        for begin in range(0, count, BATCH):
            await self._task.batch_defer_async(*({"number": each} for each in range(begin, min(begin + BATCH, count))))

    async def left(self) -> int:
        query = "select count(*) as n from procrastinate_jobs where status in ('todo', 'doing')"
        return (await self._app.connector.execute_query_one_async(query))["n"]


class Dbos:
    """A queue of workflows: each start and result is stored. Its workers poll ten times a second (by default once)."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("postgresql://", "postgresql+psycopg://")

    def _launch(self) -> None:
        from dbos import DBOS

        config = {"name": "bench", "system_database_url": self._url, "application_version": "1", "log_level": "ERROR"}
        DBOS(config=config | {"executor_id": str(os.getpid()), "run_admin_server": False})

        @DBOS.workflow(name="nothing")
        def nothing(number: int) -> None:
            del number

        DBOS.launch()
        DBOS.register_queue("bench", worker_concurrency=AT_ONCE, polling_interval_sec=0.1)

    def work(self, ready) -> None:
        self._launch()
        ready()
        time.sleep(3600)

    def prepare(self) -> None:
        import sqlalchemy
        from dbos import DBOS, DBOSClient

        self._launch()
        DBOS.destroy()
        self._client = DBOSClient(system_database_url=self._url)
        self._engine = sqlalchemy.create_engine(self._url)
        self._threads = ThreadPoolExecutor(8)

    def send(self, count: int) -> None:
        options = {"workflow_name": "nothing", "queue_name": "bench", "app_version": "1"}
        list(self._threads.map(lambda number: self._client.enqueue(options, number), range(count)))

    def left(self) -> int:
        import sqlalchemy

        query = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
        with self._engine.connect() as connection:
            return connection.execute(sqlalchemy.text(query)).scalar()


class Celery:
    """Redis as broker, acknowledged when done, without results."""

    def __init__(self, url: str) -> None:
        import celery

        self._app = celery.Celery("bench", broker=url)
        self._app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=AT_ONCE)
        self._app.conf.update(broker_connection_retry_on_startup=True, worker_redirect_stdouts=False)

        @self._app.task(name="nothing")
        def nothing(number: int) -> None:
            del number

        self._task = nothing

    def work(self, ready) -> None:
        from celery.signals import worker_ready

        worker_ready.connect(lambda **_: ready(), weak=False)
        line = ["--quiet", "worker", "--pool=prefork", "-c1", "--loglevel=ERROR", f"--hostname=w{os.getpid()}@%h"]
        self._app.worker_main([*line, "--without-gossip", "--without-mingle"])

    def prepare(self) -> None:
        import redis

        self._redis = redis.Redis.from_url(self._app.conf.broker_url)

    def send(self, count: int) -> None:
        with self._app.producer_or_acquire() as producer:
            for number in range(count):
                self._task.apply_async((number,), producer=producer)

    def left(self) -> int:
        return self._redis.llen("celery") + self._redis.hlen("unacked")


PEERS = {"pgqueuer": PgQueuer, "procrastinate": Procrastinate, "dbos": Dbos, "celery": Celery}

if __name__ == "__main__":
    main()

"""Tasks: thumbnails without limits, mails of tenants that share a queue, and one job that is cancelled while it runs.

python examples/tasks.py                    # in memory
COTERIE_URL=postgresql://… python examples/tasks.py
"""

import asyncio
import os
import time

from coterie import Cluster, MessageCancelled, Retry, current

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"), http_listen=None)
emails = cluster.queue("emails", concurrency=4, rate="200/s", partition="tenant", partition_concurrency=1)


class SmtpError(Exception):
    pass


@cluster.task
async def thumbnail(picture: str, width: int) -> str:
    return f"{picture} at {width}"


@cluster.task(queue=emails, key=("tenant", "mail"), retry=Retry(attempts=3, base="10ms", on=[SmtpError]))
def send_email(tenant: str, mail: int) -> str:
    if mail == 3 and current().attempt == 1:
        raise SmtpError("the server is busy")
    time.sleep(0.01)  # a plain def runs in a thread: this holds up nobody else
    return f"mail {mail} of {tenant}, attempt {current().attempt}"


@cluster.task
async def report(pages: int) -> None:
    for page in range(pages):
        current().progress(page, pages, "pages")
        await asyncio.sleep(0.05)


async def main() -> None:
    async with cluster:
        print(await thumbnail.job("a.png", 200))

        mails = await cluster.send_many(send_email.job(tenant, n) for tenant in ("acme", "umbrella") for n in range(5))
        for mail in mails:
            print(await cluster.result(mail))
        again = await cluster.send(send_email.job("acme", 0))
        print("the same key, the same job:", again == mails[0])

        long = await cluster.send(report.job(1_000_000), tags={"customer": "acme"})
        async with asyncio.timeout(60):
            while not (found := await cluster.jobs.list(tag=("customer", "acme"), state="claimed")):
                await asyncio.sleep(0.05)
        print(found[0].task, "runs, and is cancelled:", await cluster.cancel(long))
        try:
            await cluster.result(long)
        except MessageCancelled as error:
            print(error.message)

        for queue in await cluster.queues.list():
            print(f"{queue.name}: {queue.ready} wait, {queue.running} run, {queue.rate:g} a second at most")


if __name__ == "__main__":
    asyncio.run(main())

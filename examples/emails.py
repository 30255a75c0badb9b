"""Ten thousand e-mails of three tenants, 50 a second, urgent ones first, through a provider that fails for a minute.

python examples/emails.py           # 200 of them, in memory: all that happens takes a fiftieth of the time
python examples/emails.py 10000     # takes some four minutes
COTERIE_HTTP_LISTEN=127.0.0.1:8080 python examples/emails.py 10000   # look at the page meanwhile
COTERIE_URL=postgresql://… python examples/emails.py 10000
"""

import asyncio
import logging
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator

from coterie import Cluster, MessageDead, MessageId, Retry, current

MAILS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
OUTAGE_S = 60 * MAILS / 10_000
TENANTS = "acme", "bolt", "coda"
RATE = 50

cluster = Cluster(os.environ.get("COTERIE_URL", "sqlite://"))
emails = cluster.queue("emails", concurrency=20, rate=f"{RATE}/s", partition="tenant", partition_concurrency=10)


class ProviderDown(ConnectionError):
    """Worth another attempt."""


class Provider:
    """Stands for the service that delivers mails. When it has delivered a third of all it fails for a while."""

    def __init__(self) -> None:
        self.delivered: dict[str, float] = {}
        self.refused = 0
        self._down_until = 0.0

    async def deliver(self, mail: str) -> float:
        await asyncio.sleep(0.005)
        if not self._down_until and len(self.delivered) >= MAILS / 3:
            self._down_until = time.time() + OUTAGE_S
            print(f"the provider fails for {OUTAGE_S:.1f} s")
        if time.time() < self._down_until:
            self.refused += 1
            raise ProviderDown(f"{mail}: 503")
        self.delivered[mail] = time.time()
        return self.delivered[mail]


provider = Provider()


@cluster.task(
    queue=emails,
    key="mail",  # sent twice, it is one job
    retry=Retry(3, base=OUTAGE_S / 12, max=OUTAGE_S, on=[ProviderDown]),
    timeout="30s",
)
async def send_email(tenant: str, mail: str, text: str) -> float:  # noqa: ARG001 the tenant is the partition
    return await provider.deliver(mail)


@cluster.task
async def campaign(tenant: str, letters: int) -> int:
    """Write the letters, and send them: all of them with the end of this job, or none."""
    for number in range(letters):
        text = f"Dear customer {number} of {tenant}, …"
        await cluster.send(send_email.job(tenant, f"{tenant}/{number}", text), tags={"campaign": tenant})
        current().progress(number + 1, letters, "letters written")  # what the page and `coterie jobs show` show
    return letters


async def urgent(count: int) -> AsyncIterator[tuple[float, MessageId[float]]]:
    """Passwords are forgotten all the time, and whoever has forgotten his does not wait behind a campaign."""
    for number in range(count):
        tenant = TENANTS[number % 3]
        job = send_email.job(tenant, f"{tenant}/password-{number}", "Your new password")
        yield time.time(), await cluster.send(job, priority=10)
        await asyncio.sleep(MAILS / RATE / count)


async def report() -> None:
    """The same figures as those of `coterie queues` and of the page."""
    while True:
        await asyncio.sleep(max(1.0, MAILS / 2_000))
        queue = await cluster.queues.get("emails")
        print(f"  {len(provider.delivered):6} delivered, {queue.ready:6} wait, {queue.running:2} run")


async def main() -> None:
    letters, passwords = MAILS * 3 // 10, MAILS // 10
    async with cluster:
        began = time.time()
        reporting = asyncio.create_task(report())
        await asyncio.gather(*(campaign.job(tenant, letters) for tenant in TENANTS))
        waits, dead = [], []
        for sent_at, message in [each async for each in urgent(passwords)]:
            try:
                waits.append(await cluster.result(message, timeout="10m") - sent_at)
            except MessageDead:  # three attempts, all while the provider failed
                dead.append(message)
        print(f"urgent ones waited {1e3 * statistics.median(waits):.0f} ms; {len(dead)} of them are dead letters")
        for letter in await cluster.jobs.list(state="dead", queue="emails", limit=1_000):
            await cluster.jobs.retry(letter.id)  # or `coterie jobs retry --filter queue:emails`
        await asyncio.gather(*(cluster.result(message, timeout="10m") for message in dead))
        total = 3 * letters + passwords
        async with asyncio.timeout(600):
            while len(provider.delivered) < total:
                await asyncio.sleep(0.05)
        reporting.cancel()
        took = time.time() - began
        attempts = total + provider.refused
        print(f"{total} mails in {took:.1f} s, {attempts} attempts: {attempts / took:.0f} a second, none lost")
        assert dead, "nobody was urgent while the provider failed"
        assert attempts <= RATE * took + 10, "faster than the rate"


if __name__ == "__main__":
    logging.getLogger("coterie.tasks").addHandler(logging.NullHandler())  # each failed attempt is logged
    asyncio.run(main())

"""scratch: messages under simulated faults, judged by the checkers."""
import asyncio, itertools
import pytest
from coterie import Cluster, PersistenceError
from coterie.settings import Settings
from coterie.storage.interface import Claim, Declaration, Registration
from coterie.storage.messages import Commit, Message, Policy, Setback, StateChange
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.kv import Scope
from coterie.testing import faults
from coterie.testing.checkers import check
from coterie.testing.message_checkers import *
from coterie.testing.turn_checkers import *
from coterie.testing.message_events import *
from coterie.testing.seeds import stream
from coterie.testing.simulation import simulate
from tests.simulation.workloads import fenced
from tests.simulation.workloads.fenced import Owner, Notes, SEATS, CLUSTER, prepare, all_held

HISTORY = """
create temp table mh (seq integer primary key, what text, id text, entity text, epoch integer, reply blob, n integer, at_ns integer);
create temp trigger m_done after update of status on main.messages when new.status=1 begin
  insert into mh (what,id,entity,epoch,reply,n,at_ns) values ('done',new.id,new.entity_id,new.epoch,new.reply,new.attempts,virtual_ns()); end;
create temp trigger m_dead after update of status on main.messages when new.status=2 begin
  insert into mh (what,id,n,at_ns) values ('dead',new.id,new.attempts,virtual_ns()); end;
create temp trigger st_i after insert on main.states begin insert into mh (what,entity,n,at_ns) values ('state',new.key,cast(new.value as integer),virtual_ns()); end;
create temp trigger st_u after update of value on main.states begin insert into mh (what,entity,n,at_ns) values ('state',new.key,cast(new.value as integer),virtual_ns()); end;
"""
ATT=5
EV=[]
class Holder(Owner):
    async def _append(self, claim):
        m=self._storage.messages
        loaded=await self._try(self._storage.states.load(claim, claim.seat))
        if loaded is None:
            self._held.pop(claim.seat,None); return
        if self._random.random()<0.2:
            await self._try(m.suspect(claim,[Policy("T",1,ATT)]))
        due=await self._try(m.due({claim.seat:None},most=1))
        if not due or not due.rows: return
        got=await self._try(m.fetch([due.rows[0].id]))
        if not got: return
        d=got[0]
        now=self._sim.loop.now_ns
        EV.append(Began(d.id,d.entity_id,claim.epoch,min(d.attempts+1,ATT),now,self._sim.database.clock.wall_ns()))
        await asyncio.sleep(self._random.uniform(0,1))
        try:
            if self._random.random()<0.1:
                w=Setback(claim,d.id,d.attempts+1,"boom",None if d.attempts+1>=ATT else 0.5)
                for _ in range(3):
                    try: await m.setback(w); break
                    except PersistenceError as e: pass
                return
            value=int(loaded.value or b"0")+1
            w=Commit(claim,d.id,b"r%d"%self._random.getrandbits(30),StateChange(claim.seat,b"%d"%value,loaded.version))
            for _ in range(3):
                try: r=await m.commit(w)
                except PersistenceError as e: continue
                if r=="written": EV.append(Replied(d.id,w.reply))
                elif r=="fenced": self._held.pop(claim.seat,None)
                break
        finally:
            EV.append(Over(d.id,d.entity_id,claim.epoch))

async def client(sim, storage, number, until):
    rnd=stream(sim.seed,f"client {number}"); n=itertools.count()
    while sim.loop.time()<until:
        await asyncio.sleep(rnd.uniform(0,3))
        seat=rnd.choice(SEATS); i=next(n)
        mid=f"{sim.loop.now_ns:020d}{number:04d}{i:08d}"
        key=f"k{rnd.randrange(30)}" if rnd.random()<0.3 else None
        msg=Message(id=mid,seat=seat,entity_type="T",entity_id=seat,method="add",payload=b"",key=key)
        out="failed"
        for _ in range(3):
            try: r=await storage.messages.insert(msg)
            except PersistenceError as e:
                if e.outcome=="unknown": out="unknown"
                continue
            EV.append(Sent(r.id,seat,str(number),key or "",out if False else "ok"));break
        else: EV.append(Sent(mid,seat,str(number),key or "",out))

@pytest.mark.simulation
@pytest.mark.simulated(seeds=12)
async def test_it():
    EV.clear()
    quiet = {"lease_ttl": "60s", "lease_renew": "10s", "stall_limit": "60s"}
    cluster = Cluster("sqlite://", settings=Settings.load({"shards": 1, **quiet}, environ={}))
    notes=Notes()
    async with simulate(cluster, runners=0, faults=faults.EVERYTHING) as sim:
        prepare(sim); sim.database.main.execute(HISTORY)
        sim.body=lambda runner: Holder(sim,runner,notes).live()
        await sim.start(5)
        from coterie.storage.sqlite import SqliteStorage
        from coterie.kernel.chance import Chance
        st=SqliteStorage(Settings.load({"url":"sqlite://","name":CLUSTER},environ={}),incarnation="c"*32,clock=sim.database.clock,chance=Chance(sim.seed),executors=sim.database.executors("client"),witness=sim.database.witness)
        while True:
            try: await st.start(); break
            except PersistenceError:
                await asyncio.sleep(1)
                st=SqliteStorage(Settings.load({"url":"sqlite://","name":CLUSTER},environ={}),incarnation="c"*32,clock=sim.database.clock,chance=Chance(sim.seed),executors=sim.database.executors("client"),witness=sim.database.witness)
        until=sim.loop.time()+150
        async with asyncio.TaskGroup() as g:
            for k in range(4): g.create_task(client(sim,st,k,until))
        await sim.calm()
        await sim.wait_until(lambda: all_held(sim), within="60s")
        try: await sim.wait_until(lambda: not sim.database.main.execute("select count(*) from messages where status=0").get, within="2000s")
        except TimeoutError: print("STUCK", sim.database.clock.wall_ns(), sim.database.main.execute("select count(*), min(due_at_ns), max(due_at_ns), seat from messages where status=0 group by seat").fetchall(), sim.database.main.execute("select name, holder, epoch from seats where cluster=?",(CLUSTER,)).fetchall()); raise
        hist=[]
        for what,id,entity,epoch,reply,n,at in sim.database.main.execute("select what,id,entity,epoch,reply,n,at_ns from mh order by seq"):
            if what=="done": hist.append(Completed(id,entity,epoch,reply,1,at))
            elif what=="dead": hist.append(Died(id,n))
            else: hist.append(Counted(entity,n,at))
        left=[Left(i,("pending","done","dead")[s],a,r) for i,s,a,r in sim.database.main.execute("select id,status,attempts,reply from messages")]
        await st.stop()
    oh=OneHandlerAtATime()
    n=check([*EV,*hist,*left],EverySendEnds(),OneReply(),OneMessagePerKey(),EffectsOnce(),AttemptsBounded(ATT),oh)
    print("events",n,"done",sum(isinstance(e,Completed) for e in hist),"dead",sum(isinstance(e,Died) for e in hist),"unknown",sum(isinstance(e,Sent) and e.outcome=="unknown" for e in EV),"overlapped",len(oh.overlapped))

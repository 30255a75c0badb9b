"""The queues of all nodes: which callbacks are ready, and which nodes may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.testing.loop.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.testing.loop.clocks import LocalTime
    from coterie.testing.loop.scheduler import SchedulingPolicy
    from coterie.testing.loop.tasks import AnyHandle
    from coterie.testing.loop.trace import Trace


class Nodes:
    """Every node with its callbacks, driven by a schedule.

    Promise:
        Callbacks of a crashed node never run again. Callbacks pushed for a node that is frozen or blocked stay, in
        order, until it may run.
    """

    def __init__(self, test: Node, schedule: SchedulingPolicy, trace: Trace) -> None:
        self.test = test
        self.schedule = schedule
        self.newest: dict[str, Node] = {test.name: test}  # latest incarnation of each name
        self.on_crash: list[Callable[[Node], None]] = []
        self._trace = trace
        self._added = schedule.added
        # Callbacks of crashed nodes. If dropped, they could be the last reference to something with a finaliser.
        self._never: list[AnyHandle] = []

    def add(self, name: str, *, time: LocalTime | None = None) -> Node:
        """A new node, or the next incarnation of one that has crashed, by default on the same machine."""
        before = self.newest.get(name)
        if before is None:
            node = Node(name, time=time)
        elif before.alive:
            raise ValueError(f"node {name} is alive: crash it before it begins anew")
        else:
            node = Node(name, incarnation=before.incarnation + 1, time=time or before.time)
        self.newest[name] = node
        return node

    def add_thread(self, node: Node, name: str) -> Node:
        """A thread of a node: crashes and freezes with it, shares its clock, but goes on while the node is blocked."""
        thread = Node(f"{node.name}/{name}", incarnation=node.incarnation, time=node.time)
        thread.process = node
        thread.frozen = node.frozen
        thread.update()
        node.threads.append(thread)
        return thread

    def push(self, handle: AnyHandle) -> None:
        """Queue a callback on its node."""
        node = handle.node
        if node.runnable:
            node.ready.append(handle)
            self._added(node)
        elif node.alive:
            node.ready.append(handle)
        else:
            self._never.append(handle)

    def crash(self, node: Node) -> None:
        """Never run anything of a node again, not even `finally`: like SIGKILL."""
        assert node is not self.test, "the test cannot crash"
        if not node.alive:
            return
        self._trace.note("crash", of=node.label)
        for each in _with_threads(node):
            each.alive = False
            self._update(each)
            self._never.extend(each.ready)
            each.ready.clear()
        for tell in self.on_crash:
            tell(node)

    def freeze(self, node: Node) -> None:
        """Run nothing of a node until `thaw`; what falls due meanwhile waits: like SIGSTOP."""
        assert node is not self.test, "the test cannot freeze"
        self._freeze(node, on=True)

    def thaw(self, node: Node) -> None:
        """Resume a frozen node."""
        self._freeze(node, on=False)

    def block(self, node: Node) -> None:
        """Stop a node's event loop, but not its threads, until `unblock`: like a long computation."""
        self._block(node, on=True)

    def unblock(self, node: Node) -> None:
        """Resume a blocked node."""
        self._block(node, on=False)

    def hold(self, node: Node, on: bool, /) -> None:
        """Pause a node for a moment, for the schedule; separate from `block`, since both can be on at once."""
        node.held = on
        self._update(node)

    def clear(self) -> None:
        """Drop everything, at the end of the run."""
        for node in self.newest.values():
            for each in _with_threads(node):
                each.ready.clear()
        self._never.clear()

    def _freeze(self, node: Node, *, on: bool) -> None:
        self._trace.note("freeze" if on else "thaw", of=node.label)
        for each in _with_threads(node):
            each.frozen = on
            self._update(each)

    def _block(self, node: Node, *, on: bool) -> None:
        self._trace.note("block" if on else "unblock", of=node.label)
        node.blocked = on
        self._update(node)

    def _update(self, node: Node) -> None:
        before = node.runnable
        if node.update() == before:
            return
        if before:
            self.schedule.removed(node)
        else:
            for _ in node.ready:
                self._added(node)


def _with_threads(node: Node) -> Iterator[Node]:
    yield node
    yield from node.threads

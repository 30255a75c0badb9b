"""The page in a real browser, on real runners: what it shows, on which screens, and that names are only ever text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cluster.browser import DRAWN, Window, axe
from tests.cluster.page_program import LONG_ID, LONG_KEY, MARKUP, QUOTES

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Route

    from tests.cluster.page_cluster import PageCluster

pytestmark = pytest.mark.timeout(900)  # the first one may install the browser

PAGES = (
    "overview",
    "shards?by=owner&shard=default:3",
    "singletons?name=importer",
    "cron?name=often",
    "cron?range=5m",
    "entities?type=Visitor",
    "entities?type=Account&id=alice",
    "messages?filter=state:dead",
    "jobs?filter=state:dead",
    "jobs?queue=emails",
    "workflows?name=checkout&id=order-0",
    "schedules?name=report/acme",
    "schedules?range=5m",
    "kv?prefix=orders/",
    "runners?name=web-1",
    "activity",
)

FEW_ROWS = "{include: [document], exclude: ['tbody tr:nth-child(n+4)', '.cell:nth-child(n+4)', '.lane > *']}"
"""What axe looks at: rows of a table are alike, and it takes long."""

THEMES: tuple[tuple[str, Any], ...] = (("light", {}), ("dark", {"runOnly": ["color-contrast"]}))

OVER = "document.documentElement.scrollWidth - innerWidth"
CUT = """[...document.querySelectorAll(".table")].filter((each) => each.scrollWidth > each.clientWidth + 1)
    .map((each) => each.querySelector("table").ariaLabel)"""
HIDDEN = """() => [...document.querySelectorAll("#main :is(a, button, input, select, textarea)")].filter((each) => {
    if (!each.checkVisibility()) return false;
    each.scrollIntoView({block: "center", behavior: "instant"});
    const box = each.getClientRects()[0];
    const seen = document.elementFromPoint(box.left + Math.min(4, box.width / 2), box.top + box.height / 2);
    return box.left < 0 || box.right > innerWidth || !(each.contains(seen) || seen?.contains(each));
}).map((each) => each.outerHTML.slice(0, 200))"""
"""What can be used, but not be seen when it is scrolled to."""


def test_every_page_is_shown_without_errors_and_nothing_is_wider_than_the_screen(window: Window) -> None:
    """Console errors and reports of the content security policy are problems of the window."""
    for address in PAGES:
        main = window.open(address)
        assert not main.locator(".failed").count(), main.inner_text()
        assert main.locator("h2").count(), f"{address} is empty"
        for width in (320, 768, 1280):
            window.page.set_viewport_size({"width": width, "height": 800})
            over = window.page.evaluate(OVER)
            assert over <= 0, f"{address} is {over} px wider than {width}"
            assert window.page.evaluate(CUT) == [], f"tables of {address} are cut off at {width}"


def test_at_twice_the_size_everything_can_be_reached(browser: Browser, page_cluster: PageCluster) -> None:
    """A browser at 200 % has half of the pixels, in both directions."""
    half: Any = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}
    window = Window(browser, page_cluster.url("web-1"), **half)
    for address in PAGES:
        window.open(address)
        assert window.page.evaluate(OVER) <= 0, f"{address} is wider than the screen"
        assert window.page.evaluate(HIDDEN) == [], f"of {address} something is covered or cut off"
    window.close()


def test_who_wants_less_motion_sees_none(window: Window) -> None:
    move = """() => { document.querySelector(".map .cell").classList.add("changed");
                      return document.getAnimations().length }"""
    window.open("shards")
    assert window.page.evaluate(move) == 0
    window.page.emulate_media(reduced_motion="no-preference")
    assert window.page.evaluate(move) > 0


def test_an_update_takes_little_time_of_the_script(window: Window) -> None:
    """By the clock of the script's thread, which stands still while other processes have the processor."""
    window.open("shards")
    session = window.context.new_cdp_session(window.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    window.page.evaluate(
        """() => { window.updates = 0; new PerformanceObserver((list) => {
            updates += list.getEntriesByName("coterie-update").length }).observe({type: "measure"}); }"""
    )

    def script_s() -> float:
        found = session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "ScriptDuration")

    began_s = script_s()
    window.wait_until(lambda: window.page.evaluate("updates") >= 8, "eight updates")
    assert (script_s() - began_s) / window.page.evaluate("updates") <= 0.05


def test_names_and_values_are_only_ever_text(window: Window) -> None:
    """Whatever markup they have: none of it becomes an element, and what turns a text around is shown as its number."""
    for address, text in {
        "messages?filter=state:dead": QUOTES,
        "kv?prefix=orders/": MARKUP,
        "singletons?name=importer": MARKUP,
        "entities?type=Visitor": "evil⟨U+202E⟩txt.exe",
        "jobs?filter=state:dead": "no mailbox of ",
        "jobs?filter=task:resize": f"markup={MARKUP}",
        "jobs?filter=state:running": f"rows of {MARKUP} 5,000 of 12,000",
        "schedules?name=report/" + MARKUP: MARKUP,
        "workflows?name=checkout&id=order-0": f"{MARKUP} 0",
        "entities?type=Visitor&id=" + LONG_ID: f"Visitor/{LONG_ID}",
        "kv?prefix=orders/k&key=" + LONG_KEY: LONG_KEY,
    }.items():
        window.open(address)
        window.wait_for(text)
        assert not window.page.locator("img").count(), address
        assert "\u202e" not in window.page.locator("#main").inner_text()
        assert window.page.evaluate(OVER) <= 0, f"{address[:60]} widens the page"


def test_a_name_of_10_kb_is_text_that_does_not_widen_the_page(window: Window) -> None:
    """Longer than programs can make one: what the server says of another version is shown all the same."""
    long = MARKUP + "n" * 10_000
    row = {"key": long, "version": 1, "bytes": 1, "value": {long: long}}
    window.page.route("**/api/kv?*", lambda route: route.fulfill(json={"entries": [row], "more": False}))
    entity = {"id": long, "shard": "default:0", "runner": long, "waiting": 0, "running": 0}
    window.page.route("**/api/entities?*", lambda route: route.fulfill(json={"entities": [entity], "more": False}))
    for width in (320, 1280):
        window.page.set_viewport_size({"width": width, "height": 800})
        for address, shown in (
            ("kv?prefix=o", f"{long[:80]}…"),
            (f"kv?prefix=o&key={long}", long),
            ("entities?type=Visitor", f"{long[:80]}…"),
        ):
            main = window.open(address)
            assert shown in main.locator("tbody th").all_inner_texts()
            assert not window.page.locator("img").count()
            assert window.page.evaluate(OVER) <= 0, f"{address[:40]} is wider than {width}"


def test_a_tick_appears_on_its_line(window: Window) -> None:
    window.open("cron?name=often&range=5m")

    def drawn() -> set[str]:
        return set(window.page.locator(".lane rect.tick.ran title").all_text_contents())

    window.wait_until(drawn, "a tick is drawn")
    before = drawn()
    window.wait_until(lambda: drawn() - before, "another one is drawn")  # not more of them: old ones leave the picture
    assert window.page.locator(".lane .next").count() > 1, "those to come are drawn, too"


def test_of_many_crons_those_with_problems_are_drawn_with_their_ticks(window: Window) -> None:
    """However many there are: the ticks of those that are drawn are asked for by name."""
    view = window.page.evaluate("fetch('./api/view?pages=overview,cron').then((answer) => answer.json())")
    often = next(each for each in view["data"]["cron"] if each["name"] == "often")
    view["data"]["cron"] = [{**often, "name": f"cron-{number:03}"} for number in range(300)]
    view["data"]["cron"][-1] |= {"outcome": "failed", "running": 0}
    events = f"event: view\nid: 1\ndata: {json.dumps(view)}\n\nevent: bye\ndata: {{}}\n\n"
    window.page.route(
        "**/api/stream*", lambda route: route.fulfill(body=events, headers={"content-type": "text/event-stream"})
    )

    def answer(route: Route) -> None:
        names = parse_qs(urlsplit(route.request.url).query).get("name", [])
        tick = {"scheduled_at": view["at"], "started_at": view["at"], "ended_at": view["at"], "outcome": "ran"}
        crons = [{"name": name, "ticks": [{**tick, "count": 1}], "next": [], "more": False} for name in names]
        route.fulfill(json={"crons": crons, "more": False})

    window.page.route("**/api/ticks?*", answer)
    main = window.open("cron")
    window.wait_until(lambda: main.locator(".lane-name").count() == 24, "24 of them are drawn")
    window.wait_until(lambda: {*main.locator(".lane-text").all_inner_texts()} == {"1 tick"}, "all have their ticks")
    drawn = main.locator(".lane-name").all_inner_texts()
    assert drawn[0].startswith("cron-299 "), "what is wrong comes first"
    window.wait_for("24 of 300 crons are drawn")


def test_steps_are_drawn_on_a_line_of_time_with_what_is_known_of_them(window: Window) -> None:
    """Also those of an older version, which has not stored when they ran."""
    known = {"began_at": "2026-03-01T12:00:00Z", "ended_at": "2026-03-01T12:00:30Z", "attempts": 3, "runner": "web-2"}
    rest = {"began_at": "2026-03-01T12:00:30Z", "ended_at": "2026-03-01T12:00:40Z", "attempts": None, "runner": None}
    none = dict.fromkeys(known)
    steps: list[dict[str, Any]] = [
        {"name": "charge", "kind": "step", "status": "done", "done": True, "result": "paid", **known},
        {"name": "rest", "kind": "sleep", "status": "done", "done": True, **rest},
        {"name": "of old", "kind": "step", "status": "done", "done": True, **none},
    ]

    def answer(route: Route) -> None:
        said = route.fetch().json()
        route.fulfill(json={**said, "steps": steps})

    window.page.route("**/api/workflow?*", answer)
    main = window.open("workflows?name=checkout&id=order-0")
    bars = {each.get_attribute("class"): each.bounding_box() for each in main.locator(".lane rect").all()}
    ran, waited = bars["tick ran"], bars["tick waited"]
    assert ran is not None
    assert waited is not None
    assert ran["width"] == pytest.approx(3 * waited["width"], rel=0.05), "the length is time"
    assert waited["x"] == pytest.approx(ran["x"] + ran["width"], abs=4)
    assert main.locator(".lane-text").all_inner_texts() == [
        "30s ✓ done · 3 attempts",
        "10s ✓ done",
        "done, when is not stored",
    ]
    row = main.locator("table[aria-label=steps] tr", has_text="charge")
    assert row.locator("[data-label=Attempts]").inner_text() == "3"
    assert row.locator("[data-label=On]").inner_text() == "web-2"
    steps[:] = [{**each, **none} for each in steps]
    window.open("workflows")
    window.open("workflows?name=checkout&id=order-0")
    assert main.locator(".lane rect").count() == 3, "their order is drawn"
    window.wait_for("when each of them ran is not stored")


def test_a_run_whose_code_is_wrong_is_shown_as_stuck_with_the_reason(window: Window) -> None:
    window.open("workflows?name=invoice&id=parcel")
    window.wait_for("stuck", "table[aria-label='runs of workflows'] tr:has-text('invoice') [data-label=State]")
    window.wait_for("name 'totl' is not defined", ".detail .terms")


def test_moves_of_shards_are_replayed_by_keys(window: Window) -> None:
    """From event to event, with what happened as text; nothing moves by itself where less motion is wanted."""
    moves = [
        {"at": f"2026-03-01T12:{minute}Z", "shard": f"default:{shard}", "epoch": 100, "from": old, "to": new}
        for minute, shard, old, new in (
            ("00:01", 0, "past-1", None),
            ("00:03", 0, None, "past-2"),
            ("30:00", 0, "past-2", "past-3"),
        )
    ]
    answer = {"since": "2026-03-01T11:30:00Z", "moves": moves}
    window.page.route("**/api/shards/moves", lambda route: route.fulfill(json=answer))
    main = window.open("shards")
    slider = main.get_by_role("slider")
    assert slider.input_value() == "2"
    slider.focus()
    window.page.keyboard.press("ArrowLeft")
    window.wait_for("past-2 joined, past-1 left: default:0 moved in 2.0s", ".replay-text")
    assert "past-2" in (main.locator(".map .cell").first.get_attribute("title") or "")
    window.page.keyboard.press("ArrowLeft")
    window.wait_for("before all moves that are known", ".replay-text")
    assert "past-1" in (main.locator(".map .cell").first.get_attribute("title") or "")
    assert window.page.url.endswith("at=start"), "it can be shared"
    assert not main.get_by_role("button", name="Play").count()
    main.get_by_role("button", name="Now").click()
    window.wait_for("now; last", ".replay-text")
    assert "past" not in (main.locator(".map .cell").first.get_attribute("title") or "")


def test_messages_are_read_from_the_newest_to_older_ones_and_back(window: Window) -> None:
    def answer(route: Route) -> None:
        said = route.fetch(url=re.sub("limit=50", "limit=2", route.request.url))
        route.fulfill(response=said)

    window.page.route("**/api/messages?*", answer)
    main = window.open("messages?filter=state:dead")

    def sent() -> list[str]:
        times = main.locator("table[aria-label=messages] [data-label=Sent] time")
        return [str(each.get_attribute("datetime")) for each in times.all()]

    first = sent()
    assert len(first) == 2
    assert first == sorted(first, reverse=True), "the newest come first"
    window.use(main.get_by_role("link", name="older ones"), by_keyboard=False)
    window.wait_until(lambda: window.page.evaluate(DRAWN) and sent() != first, "the next ones are shown")
    assert max(sent()) < min(first), "none is shown twice"
    window.use(main.get_by_role("link", name="back to the newest"), by_keyboard=False)
    window.wait_until(lambda: window.page.evaluate(DRAWN) and sent() == first, "the first ones are shown")


def test_two_browsers_see_a_leader_resign(window: Window, browser: Browser, page_cluster: PageCluster) -> None:
    other = Window(browser, page_cluster.url("web-2"))
    main = window.open("singletons?name=importer")
    other.open("singletons")
    for by_keyboard in (False, True):
        epoch = max(_epoch(window), _epoch(other))
        window.use(main.get_by_role("button", name="Resign …"), by_keyboard=by_keyboard)
        assert "importer" in window.confirm(by_keyboard=by_keyboard)
        for each in (window, other):
            _wait_for_epoch(each, more_than=epoch)
    assert "leads importer now" in window.recorded("resign", "singleton importer")
    other.close()


def _wait_for_epoch(window: Window, *, more_than: int) -> None:
    window.wait_until(lambda: _epoch(window) > more_than, "another leader is shown")


def _epoch(window: Window) -> int:
    return int(_cell(window, "importer", "Epoch").inner_text().replace(",", ""))


def _cell(window: Window, row: str, column: str) -> Locator:
    rows = window.page.locator("#main table[aria-label=singletons] tr", has_text=row)
    return rows.locator(f"[data-label={column}]")


def test_keys_open_pages_filter_rows_pause_and_go_back(window: Window) -> None:
    page = window.page
    for key, title in {"2": "Shards", "4": "Cron", "0": "Runners", "6": "Messages"}.items():
        page.keyboard.press(key)
        page.wait_for_selector(f"nav [aria-current=page]:has-text('{title}')")
    page.keyboard.press("/")  # also while the page is loading: the field has the focus once it is drawn
    page.wait_for_selector("#main [data-filter]:focus")
    with page.expect_response(re.compile("api/messages.*state=dead")):
        page.keyboard.type("state:dead")
    page.wait_for_selector("#main .loading", state="detached")
    page.wait_for_selector("table[aria-label=messages] [data-row]")
    page.keyboard.press("Escape")  # leaves the field
    page.keyboard.press("j")
    page.wait_for_selector("table[aria-label=messages] [data-row] a:focus")
    for said in ("paused (+", "live"):
        page.keyboard.press(" ")  # also while a row has the focus
        window.wait_for(said, "#live")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail:focus")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="detached")
    page.wait_for_selector("table[aria-label=messages] [data-row]:nth-child(1) a:focus")
    page.keyboard.press("j")  # on from the row that was opened
    page.wait_for_selector("table[aria-label=messages] [data-row]:nth-child(2) a:focus")
    page.keyboard.press(" ")
    window.wait_for("paused (+", "#live")
    window.wait_until(lambda: re.search(r"paused \(\+[1-9]", page.locator("#live").inner_text()), "updates are counted")
    page.keyboard.press(" ")
    window.wait_for("live", "#live")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    page.keyboard.press("z")
    window.wait_for("UTC", "#zone")
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("2")
    assert page.url.endswith("messages?filter=state%3Adead"), "keys do nothing below a dialog"


def test_three_streams_that_fail_are_followed_by_polling_and_that_is_said(
    browser: Browser, page_cluster: PageCluster
) -> None:
    window = Window(browser, page_cluster.url("web-1"))
    window.wait_for("live", "#live")
    window.page.route("**/api/stream*", lambda route: route.fulfill(status=503, json={"error": "too many streams"}))
    window.open("singletons")
    window.wait_for("polling: the stream fails", "#live")

    def heartbeat() -> str | None:
        return _cell(window, "importer", "Heartbeat").locator("time").get_attribute("datetime")

    since = heartbeat()
    window.wait_until(lambda: heartbeat() != since, "what is polled is shown")
    window.problems = [said for said in window.problems if "503" not in said]
    window.close()


def test_a_hidden_tab_closes_its_stream_and_opens_it_again(browser: Browser, page_cluster: PageCluster) -> None:
    window = Window(browser, page_cluster.url("web-1"))
    window.wait_for("live", "#live")
    window.page.clock.install()
    for hidden, later_ms, word in ((True, 31_000, "paused: hidden"), (False, 0, "live")):
        window.page.evaluate(
            """hidden => { Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                           document.dispatchEvent(new Event("visibilitychange")); }""",
            hidden,
        )
        window.page.clock.fast_forward(later_ms)
        window.wait_for(word, "#live")
    window.close()


def test_whoever_may_only_read_sees_no_acts_and_is_told_why(browser: Browser, page_cluster: PageCluster) -> None:
    window = Window(browser, page_cluster.url("web-1"))
    session = window.page.evaluate("fetch('./api/session').then((answer) => answer.json())")
    window.page.route("**/api/session", lambda route: route.fulfill(json={**session, "access": "read", "token": None}))
    window.page.reload()
    window.wait_for("read-only", ".bar")
    for address in ("cron?name=yearly", "singletons?name=importer", "runners?name=web-1"):
        main = window.open(address)
        window.wait_for("Read-only access: this page may look, not act.")
        names = main.get_by_role("button").all_inner_texts()
        assert not [name for name in names if re.search(r"…|▶|❚", name)], names
    window.close()


def test_the_store_applies_changes_by_key_and_never_changes_an_older_version(window: Window) -> None:
    """What a paused page shows is an older version."""
    before, after = window.page.evaluate(
        """async () => {
            const { apply, fromSnapshot } = await import("./page/store.js");
            const shown = (version) => ({...version, data: {
                names: [...version.data.cron.keys()], waiting: version.data.messages.waiting,
                shards: [...version.data.shards.shards.values()].map((row) => row.owner)}});
            const one = fromSnapshot({revision: 1, at: "", runner: "", data: {cron: [{name: "a"}, {name: "__proto__"}],
                messages: {waiting: 1, overdue: []}, shards: {groups: [],
                shards: [{shard: "default:0", owner: "x"}]}}});
            const two = apply(one, {revision: 2, at: "", runner: "", remove: [["cron", "a"]], set: [[["cron", "b"],
                {name: "b"}], [["messages", "waiting"], 2], [["shards", "shards", "default:0"], {owner: "y"}]]});
            return [shown(one), shown(two)];
        }"""
    )
    assert before["data"] == {"names": ["a", "__proto__"], "waiting": 1, "shards": ["x"]}
    assert after["data"] == {"names": ["__proto__", "b"], "waiting": 2, "shards": ["y"]}


def test_the_filter_is_read_as_the_command_line_reads_it(window: Window) -> None:
    read = "async (text) => (await import('./page/filter.js')).parseFilter(text)"
    for text, given in {
        "": {},
        "state:dead type:Account": {"state": "dead", "type": "Account"},
        "type:Account/alice": {"type": "Account", "id": "alice"},
        """error:"no route: to host" key:'a b'""": {"error": "no route: to host", "key": "a b"},
    }.items():
        assert window.page.evaluate(read, text) == {"given": given, "problem": ""}
    for text in ("dead", "stat:dead", "state:gone", "id:alice", "type:"):
        assert window.page.evaluate(read, text)["problem"], text


def test_axe_finds_nothing_serious(window: Window, tmp_path: Path) -> None:
    """All its rules in the light theme; in the dark one colours differ, nothing else."""
    window.page.evaluate(axe(tmp_path))
    found = []
    for address in PAGES:
        window.open(address)
        for theme, options in THEMES:
            window.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            judged = window.page.evaluate(f"options => axe.run({FEW_ROWS}, options)", options)
            serious = [each for each in judged["violations"] if each["impact"] in ("serious", "critical")]
            found += [(address, theme, each["id"], each["nodes"][0]["html"]) for each in serious]
    assert not found


def test_a_killed_leader_is_shown_moving_and_a_killed_server_is_gone_until_it_is_back(
    browser: Browser, page_cluster: PageCluster
) -> None:
    windows = {name: Window(browser, page_cluster.url(name)) for name in ("web-1", "web-2", "web-3")}
    for each in windows.values():
        each.open("singletons")

    def leader_in(window: Window) -> str:
        return _cell(window, "importer", "Leader").inner_text().split()[-1]

    watcher = windows["web-1"]
    watcher.wait_until(lambda: leader_in(watcher) in windows, "one of the runners leads")
    leader = leader_in(watcher)
    survivor = next(each for name, each in windows.items() if name != leader)
    page_cluster.kill(leader)
    survivor.wait_until(lambda: leader_in(survivor) not in (leader, "none"), "another leader is shown")
    orphan = windows[leader]
    orphan.wait_for(f"{leader} is gone, reconnecting", "#live")
    assert "importer" in orphan.page.locator("#main").inner_text(), "what was shown last stays"
    page_cluster.start(leader)
    page_cluster.wait_for(leader)
    orphan.wait_for("live", "#live")
    for name, each in windows.items():
        if name == leader:
            # It is refused while nothing listens, and then until the runner has started.
            each.problems = [said for said in each.problems if "net::ERR" not in said and "503" not in said]
        each.close()

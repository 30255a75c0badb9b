"""The page in a real browser, on real runners: what it shows, what can be done there; names are only ever text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.cluster.browser import Window, axe, opened
from tests.cluster.page_cluster import page_cluster
from tests.cluster.page_program import MARKUP, QUOTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.cluster.page_cluster import PageCluster

pytestmark = pytest.mark.timeout(400)

PAGES = (
    "overview",
    "shards?by=owner&shard=default:3",
    "singletons?name=importer",
    "cron?name=often",
    "cron?range=5m",
    "entities?type=Visitor",
    "entities?type=Account&id=alice",
    "messages?filter=state:dead",
    "workflows?name=checkout&id=order-0",
    "kv?prefix=orders/",
    "runners?name=web-1",
    "activity",
)

FEW_ROWS = "{include: [document], exclude: ['tbody tr:nth-child(n+4)', '.cell:nth-child(n+4)', '.lane > *']}"
"""What axe looks at: rows of a table are alike, and it takes long."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageCluster]:
    with page_cluster(tmp_path_factory.mktemp("page")) as cluster:
        yield cluster


@pytest.fixture
def window(browser: Browser, cluster: PageCluster) -> Iterator[Window]:
    window = Window(browser, cluster.url("web-1"))
    window.wait_for("live", "#live")
    yield window
    window.close()


def test_every_page_is_shown_without_errors_and_nothing_is_wider_than_the_screen(window: Window) -> None:
    """Console errors and reports of the content security policy are problems of the window."""
    for address in PAGES:
        main = window.open(address)
        assert not main.locator(".failed").count(), main.inner_text()
        assert main.locator("h2").count(), f"{address} is empty"
        for width in (320, 768, 1280):
            window.page.set_viewport_size({"width": width, "height": 800})
            over = window.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{address} is {over} px wider than {width}"


def test_an_update_takes_little_time_of_the_script(window: Window) -> None:
    window.page.evaluate(
        """() => { window.updates = []; new PerformanceObserver((list) => updates.push(
            ...list.getEntriesByName("coterie-update").map((each) => each.duration))).observe({type: "measure"}); }"""
    )
    window.open("shards")
    window.wait_until(lambda: window.page.evaluate("updates.length") >= 8, "eight updates")
    assert sorted(window.page.evaluate("updates"))[4] <= 50


def test_names_and_values_are_only_ever_text(window: Window) -> None:
    """Whatever markup they have: none of it becomes an element, and what turns a text around is shown as its number."""
    for address, text in {
        "messages?filter=state:dead": QUOTES,
        "kv?prefix=orders/": MARKUP,
        "singletons?name=importer": MARKUP,
        "entities?type=Visitor": "evil⟨U+202E⟩txt.exe",
        "workflows?name=checkout&id=order-0": f"{MARKUP} 0",
    }.items():
        window.open(address)
        window.wait_for(text)
        assert not window.page.locator("img").count(), address
        assert "\u202e" not in window.page.locator("#main").inner_text()


def test_a_tick_appears_on_its_line(window: Window) -> None:
    window.open("cron?name=often&range=5m")

    def drawn() -> int:
        return window.page.locator(".lane rect.tick.ran").count()

    window.wait_until(drawn, "a tick is drawn")
    before = drawn()
    window.wait_until(lambda: drawn() > before, "another one is drawn")
    assert window.page.locator(".lane .next").count() > 1, "those to come are drawn, too"


def test_a_cron_is_triggered_by_mouse_and_paused_and_resumed_by_keyboard(window: Window) -> None:
    main = window.open("cron")
    main.get_by_role("button", name="run yearly now").click()
    assert "yearly" in window.confirm()
    row = "table[aria-label=crons] tr:has-text('yearly')"
    window.wait_for("ran", row)
    for name, word in (("pause yearly", "paused"), ("resume yearly", "in ")):
        main.get_by_role("button", name=name).focus()
        window.page.keyboard.press("Enter")
        assert "yearly" in window.confirm(by_keyboard=True)
        window.wait_for(word, row)
    window.open("activity")
    window.wait_for("trigger")


def test_a_dead_message_is_retried_and_edited_as_a_new_one(window: Window) -> None:
    main = window.open("messages?filter=state:dead type:Account/alice")
    main.locator("table[aria-label=messages] a.primary").first.click()
    window.wait_for("Failed attempts")
    main.get_by_role("button", name="Retry …").first.click()
    assert window.confirm()
    window.wait_for("dead after 1 failed attempt")
    main.locator("#arguments").fill('{"order_id": "o-3", "cents": 7}')
    main.get_by_role("button", name="Send as a new message …").focus()
    window.page.keyboard.press("Enter")
    assert window.confirm(by_keyboard=True)
    window.open("entities?type=Account&id=alice")
    window.wait_for('"cents": 12')


def test_a_deferred_is_resolved_with_a_form_of_its_type(window: Window) -> None:
    for number, by_keyboard in ((0, False), (1, True)):
        main = window.open(f"workflows?name=checkout&id=order-{number}")
        main.get_by_label("approved").select_option("yes")
        main.get_by_label("by", exact=True).fill(f"bob {number}")
        button = main.get_by_role("button", name="Resolve …")
        if by_keyboard:
            button.focus()
            window.page.keyboard.press("Enter")
        else:
            button.click()
        assert "approval" in window.confirm(by_keyboard=by_keyboard)
        window.wait_for(f"bob {number}")
        window.wait_for("✓ done")


def test_two_browsers_see_a_leader_resign(window: Window, browser: Browser, cluster: PageCluster) -> None:
    other = Window(browser, cluster.url("web-2"))
    main = window.open("singletons?name=importer")
    other.open("singletons")
    epoch = int(_cell(other, "importer", "Epoch"))
    main.get_by_role("button", name="Resign …").click()
    assert "importer" in window.confirm()
    window.wait_until(lambda: int(_cell(window, "importer", "Epoch")) > epoch, "another leader is shown")
    other.wait_until(lambda: int(_cell(other, "importer", "Epoch")) > epoch, "another leader is shown there")
    other.close()


def _cell(window: Window, row: str, column: str) -> str:
    rows = window.page.locator("#main table[aria-label=singletons] tr", has_text=row)
    return rows.locator(f"[data-label={column}]").inner_text().replace(",", "")


def test_keys_open_pages_filter_rows_pause_and_go_back(window: Window) -> None:
    page = window.page
    for key, title in {"2": "Shards", "4": "Cron", "0": "Activity", "6": "Messages"}.items():
        page.keyboard.press(key)
        page.wait_for_selector(f"nav [aria-current=page]:has-text('{title}')")
    page.keyboard.press("/")  # also while the page is loading: the field has the focus once it is drawn
    page.wait_for_selector("#main [data-filter]:focus")
    with page.expect_response(re.compile("api/messages.*state=dead")):
        page.keyboard.type("state:dead")
    page.wait_for_selector("#main .loading", state="detached")
    window.wait_for("✗ dead")
    page.keyboard.press("Escape")  # leaves the field
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="detached")
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
    browser: Browser, cluster: PageCluster
) -> None:
    window = Window(browser, cluster.url("web-1"))
    window.wait_for("live", "#live")
    window.page.route("**/api/stream*", lambda route: route.fulfill(status=503, json={"error": "too many streams"}))
    window.open("singletons")
    window.wait_for("polling: the stream fails", "#live")
    since = _cell(window, "importer", "Heartbeat")
    window.wait_until(lambda: _cell(window, "importer", "Heartbeat") != since, "what is polled is shown")
    window.problems = [said for said in window.problems if "503" not in said]
    window.close()


def test_a_hidden_tab_closes_its_stream_and_opens_it_again(browser: Browser, cluster: PageCluster) -> None:
    window = Window(browser, cluster.url("web-1"))
    window.wait_for("live", "#live")
    window.page.clock.install()
    for hidden, word in ((True, "paused: hidden"), (False, "live")):
        window.page.evaluate(
            """hidden => { Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                           document.dispatchEvent(new Event("visibilitychange")); }""",
            hidden,
        )
        window.page.clock.fast_forward(31_000)
        window.wait_for(word, "#live")
    window.close()


def test_whoever_may_only_read_sees_no_acts_and_is_told_why(browser: Browser, cluster: PageCluster) -> None:
    window = Window(browser, cluster.url("web-1"))
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
        for theme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            window.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            judged = window.page.evaluate(f"options => axe.run({FEW_ROWS}, options)", options)
            serious = [each for each in judged["violations"] if each["impact"] in ("serious", "critical")]
            found += [(address, theme, each["id"], each["nodes"][0]["html"]) for each in serious]
    assert not found


def test_a_killed_leader_is_shown_moving_and_a_killed_server_is_gone_until_it_is_back(
    browser: Browser, cluster: PageCluster
) -> None:
    """The last one: it takes runners away."""
    windows = {name: Window(browser, cluster.url(name)) for name in ("web-1", "web-2", "web-3")}
    for each in windows.values():
        each.open("singletons")
    leader = _cell(windows["web-1"], "importer", "Leader").split()[-1]
    survivor = next(each for name, each in windows.items() if name != leader)
    cluster.kill(leader)
    survivor.wait_until(
        lambda: _cell(survivor, "importer", "Leader").split()[-1] not in (leader, "none"), "another leader is shown"
    )
    orphan = windows[leader]
    orphan.wait_for(f"{leader} is gone, reconnecting", "#live")
    assert "importer" in orphan.page.locator("#main").inner_text(), "what was shown last stays"
    cluster.start(leader)
    orphan.wait_for("live", "#live")
    for name, each in windows.items():
        if name == leader:
            each.problems = [said for said in each.problems if "net::ERR" not in said]
        each.close()

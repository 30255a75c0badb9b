"""What people do with the page: by mouse and by keyboard, confirmed, recorded, also behind a prefix.

All tests share runners and their database: each acts on things of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cluster.browser import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.cluster.page_cluster import PageCluster

pytestmark = pytest.mark.timeout(900)  # the first one may install the browser

WAYS = (False, True)
"""By keyboard or not."""


def test_a_cron_is_triggered_paused_and_resumed(window: Window) -> None:
    main = window.open("cron")
    row = "table[aria-label=crons] tr:has-text('yearly')"
    for by_keyboard in WAYS:
        ran = window.page.locator(f"{row} [data-label=Last] time").all()
        before = ran[0].get_attribute("datetime") if ran else None
        window.use(main.get_by_role("button", name="run yearly now"), by_keyboard=by_keyboard)
        assert "yearly" in window.confirm(by_keyboard=by_keyboard)
        later = window.page.locator(f"{row} [data-label=Last] time:not([datetime='{before}'])")
        later.wait_for()
        window.wait_for("ran", f"{row} [data-label=Result]")
    for name, word in (("pause yearly", "paused"), ("resume yearly", "in ")):
        window.use(main.get_by_role("button", name=name), by_keyboard=True)
        assert "yearly" in window.confirm(by_keyboard=True)
        window.wait_for(word, f"{row} [data-label=Next]")
    assert "runs once" in window.recorded("trigger", "cron yearly")
    assert "is paused" in window.recorded("pause", "cron yearly")
    assert "runs again" in window.recorded("resume", "cron yearly")


@pytest.mark.parametrize(("entity", "by_keyboard"), [("clicked", False), ("typed", True)])
def test_a_dead_message_is_retried_and_edited_as_a_new_one(window: Window, entity: str, by_keyboard: bool) -> None:
    main = window.open(f"messages?filter=state:dead type:Account/{entity}")
    window.use(main.locator("table[aria-label=messages] a.primary").first, by_keyboard=by_keyboard)
    ended = window.term("ended").locator("time")
    before = ended.get_attribute("datetime")
    window.use(main.locator("#detail, .detail").get_by_role("button", name="Retry …"), by_keyboard=by_keyboard)
    assert "retries 1 dead message" in window.confirm(by_keyboard=by_keyboard)
    window.wait_until(lambda: ended.count() and ended.get_attribute("datetime") != before, "it has died once more")
    main.locator("#arguments").fill('{"order_id": "o-3", "cents": 7}')
    window.use(main.get_by_role("button", name="Send as a new message …"), by_keyboard=by_keyboard)
    assert f"sends Account/{entity}.charge" in window.confirm(by_keyboard=by_keyboard)
    window.open(f"entities?type=Account&id={entity}")
    window.wait_for('"cents": 12')
    assert "is sent as message" in window.recorded("edit", "message")


def test_dead_messages_are_purged_by_keyboard(window: Window) -> None:
    main = window.open("messages?filter=state:dead type:Account/purged")
    window.use(main.locator("table[aria-label=messages] a.primary").first, by_keyboard=True)
    window.use(main.locator(".detail").get_by_role("button", name="Purge …"), by_keyboard=True)
    assert "deletes 1 message of Account.charge for good" in window.confirm(by_keyboard=True)
    window.wait_for("No message matches this filter.")
    assert "1 message of Account.charge deleted" in window.recorded("purge", "message")
    # It may have been read once more between its end in the database and the answer that says so.
    window.problems = [said for said in window.problems if "404 (Not Found)" not in said or "api/message?" not in said]


def test_what_is_selected_is_purged_and_nothing_else(window: Window) -> None:
    main = window.open("messages?filter=state:dead type:Account/selected")
    box = main.locator("table[aria-label=messages]").get_by_role("checkbox")
    box.focus()
    window.page.keyboard.press("Space")
    window.use(main.get_by_role("button", name="Purge 1 selected …"), by_keyboard=True)
    assert "deletes 1 message" in window.confirm(by_keyboard=True)
    window.wait_for("No message matches this filter.")
    main = window.open("messages?filter=type:Account/selected state:done")
    assert main.locator("table[aria-label=messages] tbody tr").count() == 1


def test_an_act_that_is_cancelled_is_not_done(window: Window) -> None:
    main = window.open("entities?type=Account&id=alice")
    window.use(main.get_by_role("button", name="Reset …"), by_keyboard=True)
    window.page.locator("dialog .will").wait_for()
    window.page.keyboard.press("Enter")  # what cannot be taken back begins on Cancel
    window.wait_until(lambda: not window.page.locator("dialog[open]").count(), "the dialog closes")
    window.open("activity")
    assert (
        "Account/alice"
        not in window.page.locator("#main table[aria-label=acts]")
        .or_(window.page.locator("#main p.dim"))
        .first.inner_text()
    )


def test_an_entity_is_reset_by_keyboard(window: Window) -> None:
    main = window.open("entities?type=Account&id=reset")
    window.wait_for("1 dead")
    window.use(main.get_by_role("button", name="Reset …"), by_keyboard=True)
    assert "1 dead message of Account/reset will run again" in window.confirm(by_keyboard=True)
    assert "1 dead message of Account/reset run again" in window.recorded("reset", "entity Account/reset")


def test_a_deferred_is_resolved_with_a_form_of_its_type(window: Window) -> None:
    for number, by_keyboard in ((1, False), (2, True)):
        main = window.open(f"workflows?name=checkout&id=order-{number}")
        main.get_by_label("approved").select_option("yes")
        main.get_by_label("by", exact=True).fill(f"bob {number}")
        window.use(main.get_by_role("button", name="Resolve …"), by_keyboard=by_keyboard)
        assert "approval" in window.confirm(by_keyboard=by_keyboard)
        window.wait_for("done", ".detail .terms")
        window.wait_for(f"bob {number}", ".detail [aria-label=result]")
        assert "has its value" in window.recorded("resolve", f"order-{number}")


def test_a_run_is_resumed_and_interrupted_by_keyboard(window: Window) -> None:
    main = window.open("workflows?name=checkout&id=order-3")
    window.use(main.get_by_role("button", name="Resume …"), by_keyboard=True)
    assert "will look now whether it can go on" in window.confirm(by_keyboard=True)
    assert "looks whether it can go on" in window.recorded("resume-workflow", "checkout/order-3")
    main = window.open("workflows?name=checkout&id=order-3")
    window.use(main.get_by_role("button", name="Interrupt …"), by_keyboard=True)
    assert "will be interrupted" in window.confirm(by_keyboard=True)
    window.wait_until(lambda: "interrupted" in window.term("state").inner_text(), "it is interrupted")
    window.wait_until(lambda: not main.get_by_role("button", name="Interrupt …").count(), "it is over")
    assert "is asked to end" in window.recorded("interrupt", "checkout/order-3")


def test_a_run_is_sent_a_message_retried_and_forked(window: Window) -> None:
    """W6, W9."""
    main = window.open("workflows?name=delivery&id=parcel")
    window.wait_for("packed", ".detail table[aria-label=published]")
    assert main.get_by_role("link", name="checkout/of-parcel").count() == 1
    main.get_by_text("Send a message").first.click()
    main.get_by_label("name", exact=True).fill("dispatch")
    main.get_by_label("message", exact=True).fill('"ada"')
    window.use(main.get_by_role("button", name="Send …"), by_keyboard=True)
    assert "will be sent the message dispatch" in window.confirm(by_keyboard=True)
    window.wait_for("failed", ".detail .terms")
    assert "message dispatch is sent" in window.recorded("send-to-workflow", "delivery/parcel")

    main = window.open("workflows?name=delivery&id=parcel")
    window.use(main.get_by_role("button", name="Retry …"), by_keyboard=True)
    assert "will go on from the step that failed" in window.confirm(by_keyboard=True)
    window.wait_for("2 by ada", ".detail [aria-label=result]")
    assert "goes on from the step that failed" in window.recorded("retry-workflow", "delivery/parcel")

    main = window.open("workflows?name=delivery&id=parcel")
    assert main.locator(".detail .lane-row").count() > 4  # steps stay on their line of time after the end
    main.get_by_text("Fork this run").first.click()
    main.get_by_label("before", exact=True).select_option("book")
    main.get_by_label("id", exact=True).fill("parcel-2")
    window.use(main.get_by_role("button", name="Fork …"), by_keyboard=False)
    assert "delivery/parcel-2 will be started with 3 steps of delivery/parcel, before book" in window.confirm()
    window.open("workflows?name=delivery&id=parcel-2")
    window.wait_for("3 by ada", ".detail [aria-label=result]")
    assert "goes on before book" in window.recorded("fork-workflow", "delivery/parcel")


def test_a_runner_is_drained_by_keyboard(window: Window, page_cluster: PageCluster) -> None:
    """A runner of its own: it takes nothing again."""
    page_cluster.start("web-9")
    page_cluster.wait_for("web-9")
    main = window.open("runners?name=web-9")
    window.wait_until(lambda: int(window.term("shards").inner_text()) > 0, "it holds shards")
    window.use(main.get_by_role("button", name="Drain …"), by_keyboard=True)
    assert "web-9 will give up" in window.confirm(by_keyboard=True)
    window.wait_until(lambda: window.term("shards").inner_text() == "0", "it has none any more")
    assert "web-9 gives up" in window.recorded("drain", "runner web-9")
    page_cluster.kill("web-9")


def test_the_page_streams_and_acts_where_fastapi_mounts_it_and_behind_a_prefix(
    browser: Browser, page_cluster: PageCluster
) -> None:
    host = page_cluster.host()
    for prefix, order in (("/coterie", 4), ("/tools/ops/", 5)):
        window = Window(browser, f"{host}{prefix}")
        window.wait_for("live", "#live")
        main = window.open("cron?name=often")
        last = "table[aria-label=crons] tr:has-text('often') [data-label=Last] time"
        before = main.locator(last).get_attribute("datetime")
        main.locator(f"{last}:not([datetime='{before}'])").wait_for()
        main = window.open(f"workflows?name=checkout&id=order-{order}")
        main.get_by_label("approved").select_option("no")
        main.get_by_label("by", exact=True).fill("somebody")
        window.use(main.get_by_role("button", name="Resolve …"), by_keyboard=False)
        window.confirm()
        window.wait_for("done", ".detail .terms")
        assert "has its value" in window.recorded("resolve", f"order-{order}")
        assert window.page.url.startswith(f"{host}{prefix.rstrip('/')}/#")
        window.close()


def _says(window: Window, term: str, text: str) -> bool:
    return text in window.term(term).inner_text()


def test_a_queue_is_paused_limited_and_resumed(window: Window) -> None:
    """T9."""
    main = window.open("jobs?queue=emails")
    for by_keyboard, verb, shown in ((False, "Pause", "paused"), (True, "Resume", "running")):
        button = main.locator(".detail").get_by_role("button", name=f"{verb.lower()} emails")
        window.use(button, by_keyboard=by_keyboard)
        assert "emails" in window.confirm(by_keyboard=by_keyboard)
        window.wait_until(partial(_says, window, "state", shown), f"it is {shown}")
    main.get_by_text("Change the limits").click()
    main.get_by_label("at once", exact=True).fill("40")
    main.get_by_label("starts, as in 50/s").fill("")
    main.get_by_role("button", name="Limit …").click()
    assert "gives emails concurrency 40" in window.confirm()
    window.wait_until(lambda: "of 40" in window.term("running").inner_text(), "the limit is shown")
    main.get_by_role("button", name="Reset the limits …").click()
    assert "the program's limits" in window.confirm()
    window.wait_until(lambda: "of 3" in window.term("running").inner_text(), "the program's limit is shown")
    assert window.recorded("pause-queue", "queue emails") == "emails is paused"


def test_dead_jobs_are_run_again_and_one_that_runs_is_cancelled(window: Window) -> None:
    """T6."""
    main = window.open("jobs?filter=state:dead")
    window.use(main.locator("table[aria-label=jobs] a.primary").first, by_keyboard=True)
    window.use(main.locator(".detail").get_by_role("button", name="Retry …"), by_keyboard=True)
    assert "runs 1 dead job of send_email again" in window.confirm(by_keyboard=True)
    window.recorded("retry-jobs", "job j")
    main = window.open("jobs?filter=state:dead")
    main.locator("table[aria-label=jobs] a.primary").first.click()
    main.locator("textarea").fill('{"tenant": "acme", "text": "better"}')
    main.get_by_role("button", name="Send as a new job …").click()
    assert "sends send_email with these arguments as a new job" in window.confirm()
    assert "send_email is sent as job j" in window.recorded("edit-job", "job j")
    main = window.open("jobs?filter=state:running+task:import_rows")
    main.locator("table[aria-label=jobs] a.primary").first.click()
    window.wait_for("5,000 of 12,000", "#main .detail")
    main.locator(".detail").get_by_role("button", name="Cancel …").click()
    assert "its body, which runs, is cancelled" in window.confirm()
    window.wait_for("cancelled", "#main .detail")


def test_a_schedule_is_paused_resumed_and_removed(window: Window) -> None:
    main = window.open("schedules?name=report/acted-on")
    for by_keyboard, verb, shown in ((True, "pause", "paused"), (False, "resume", "in ")):
        button = main.locator(".detail").get_by_role("button", name=f"{verb} report/acted-on")
        window.use(button, by_keyboard=by_keyboard)
        assert "report/acted-on" in window.confirm(by_keyboard=by_keyboard)
        window.wait_until(partial(_says, window, "next", shown), f"it says {shown}")
    main.locator(".detail").get_by_role("button", name="Remove …").click()
    assert "removes report/acted-on" in window.confirm()
    window.wait_until(lambda: not main.locator(".detail").count(), "what was shown is gone")
    assert window.recorded("remove-schedule", "schedule report/acted-on") == "report/acted-on is removed"

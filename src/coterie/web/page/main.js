// Starts the page: session, feed, header, and the page of the address, drawn again whenever something has changed.

import { readSession, useBearer } from "./api.js";
import { app, nextTheme, nextZone, observe, sample } from "./app.js";
import { h, render } from "./dom.js";
import { duration } from "./format.js";
import { afterDraw, help, listen } from "./keys.js";
import activity from "./pages/activity.js";
import cron from "./pages/cron.js";
import entities from "./pages/entities.js";
import jobs from "./pages/jobs.js";
import kv from "./pages/kv.js";
import messages from "./pages/messages.js";
import overview from "./pages/overview.js";
import runners from "./pages/runners.js";
import schedules from "./pages/schedules.js";
import shards from "./pages/shards.js";
import singletons from "./pages/singletons.js";
import workflows from "./pages/workflows.js";
import { onResource, sweep } from "./resource.js";
import { current, link } from "./router.js";
import { Feed } from "./stream.js";
import { failed, health, name, words } from "./ui.js";

const PAGES = [overview, shards, singletons, cron, entities, messages, jobs, workflows, schedules, runners, kv, activity];
const STALE_MS = 20_000; // more than a keep-alive
const SAID_MS = 10_000;

let scheduled = false;
let drawnPage = null;

function start() {
  app.invalidate = schedule;
  app.feed = new Feed(onFeed);
  onResource(schedule);
  addEventListener("hashchange", onRoute);
  listen(PAGES, pause);
  setInterval(tick, 1000);
  document.getElementById("main").replaceChildren();
  onRoute();
  begin();
}

/** Read the session, again and again until there is one. */
async function begin() {
  try {
    app.session = await readSession();
    app.sessionError = null;
  } catch (error) {
    app.sessionError = error;
    if (error.status !== 401) setTimeout(begin, 2000);
  }
  schedule();
}

function onRoute() {
  if (location.hash === "#main") { // the skip link
    document.getElementById("main").focus();
    history.replaceState(null, "", link(app.route.page, app.route.params));
    return;
  }
  app.route = current();
  app.feed.want(pageOf().pages);
  schedule();
}

function pageOf() {
  return PAGES.find((each) => each.id === app.route.page) ?? overview;
}

function tick() {
  if (app.feed.phase === "live" || app.feed.phase === "polling") sample();
  if (!document.hidden && !app.paused) schedule();
  if (app.paused) drawTop();
}

function onFeed(feed) {
  if (feed.version && feed.version !== onFeed.seen) {
    const known = onFeed.seen;
    onFeed.seen = feed.version;
    const events = observe(known && known.pages === feed.version.pages ? known : overviewOnly(known), feed.version);
    if (events.length) say(events[0].text);
    if (app.paused && app.shown?.pages === feed.version.pages) app.missed += 1;
    else app.shown = merged(feed.version);
    if (app.session && feed.version.runner && feed.version.runner !== app.session.runner) begin(); // another runner answers now
  }
  schedule();
}

/** After another page was opened only what both have can be compared. */
function overviewOnly(version) {
  return version && { ...version, data: { overview: version.data.overview } };
}

/** What other pages have shown before stays until they are read again: no page flickers. */
function merged(version) {
  return { ...version, data: { ...app.shown?.data, ...version.data } };
}

function pause() {
  app.paused = !app.paused;
  app.missed = 0;
  if (!app.paused && app.feed.version) app.shown = merged(app.feed.version);
  schedule();
}

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

function draw() {
  scheduled = false;
  const began = performance.now();
  const page = pageOf();
  drawTop();
  const main = document.getElementById("main");
  const fresh = drawnPage !== page.id;
  if (fresh) main.scrollTop = 0;
  drawnPage = page.id;
  render(main, [
    h("h1", { key: "h1", class: "unseen" }, page.title),
    problem(),
    app.shown || page.pages.length === 0 || !app.feed.error ? h("div", { key: page.id, class: `page ${page.id}` }, page.view(app.route)) : null,
  ]);
  main.dataset.address = app.route.address;
  sweep();
  afterDraw();
  if (fresh) scrollTo(0, 0);
  if (fresh) showTab();
  const status = app.shown?.data.overview?.status;
  document.title = `${status && status !== "healthy" ? `${status} · ` : ""}${page.title} · ${app.session?.cluster ?? "coterie"}`;
  performance.clearMeasures("coterie-update");
  performance.measure("coterie-update", { start: began, end: performance.now() });
}

/** Where the tabs do not fit, the one of this page is scrolled to. */
function showTab() {
  const tab = document.querySelector(".pages [aria-current]");
  const tabs = tab?.parentElement;
  if (tabs) tabs.scrollLeft = tab.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
}

function problem() {
  const error = app.sessionError?.status === 401 ? app.sessionError : app.feed.error;
  if (error?.status === 401) return tokenForm(error);
  if (!app.shown && error) return h("div", { class: "card", key: "problem" }, failed("the cluster", error));
  return null;
}

function tokenForm(error) {
  const open = (event) => {
    event.preventDefault();
    useBearer(new FormData(event.target).get("token"));
    begin();
    app.feed.open();
  };
  return h(
    "form",
    { class: "card", key: "token", onsubmit: open },
    h("h2", null, "This page needs a token"),
    h("p", null, words(error.message), error.hint && [": ", words(error.hint)]),
    h("p", { class: "field" }, h("label", { for: "token" }, "http_token"), h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true })),
    h("button", { type: "submit", class: "primary" }, "Open"),
  );
}

function drawTop() {
  const here = pageOf();
  render(document.getElementById("top"), [
    h(
      "div",
      { class: "bar" },
      h("a", { class: "brand", href: link("overview") }, h("span", { class: "mark", "aria-hidden": "true" }, "▲"), "coterie", app.session?.cluster && [" · ", name(app.session.cluster, 40)]),
      app.shown?.data.overview && here !== overview && h("a", { class: "verdict-small", href: link("overview") }, health(app.shown.data.overview.status)),
      h("span", { class: "space" }),
      app.session?.access === "read" && h("span", { class: "badge", title: "this page may look, not act" }, "read-only"),
      h("button", { type: "button", id: "live", class: "quiet", "aria-label": liveText().label, title: "pause or go on (space)", onclick: pause }, ...liveText().shown),
      h("button", { type: "button", id: "zone", class: "quiet", title: "zone of times (z)", onclick: nextZone, "aria-label": `zone of times: ${app.zone}` }, app.zone),
      h("button", { type: "button", id: "theme", class: "quiet", title: "theme (t)", onclick: nextTheme, "aria-label": `theme: ${app.theme}` }, { auto: "◐ auto", light: "○ light", dark: "● dark" }[app.theme]),
      h("button", { type: "button", id: "keys", class: "quiet", title: "keys (?)", onclick: help, "aria-label": "keys" }, "?"),
    ),
    h(
      "nav",
      { class: "pages", "aria-label": "pages" },
      PAGES.map((page, index) => h("a", { key: page.id, href: link(page.id), "aria-current": page === here ? "page" : null }, index < 10 && h("span", { class: "digit", "aria-hidden": "true" }, (index + 1) % 10), page.title)),
    ),
  ]);
}

/** Live, paused, stale or gone. */
function liveText() {
  const { feed } = app;
  const age = performance.now() - feed.heardAt;
  const who = app.session?.runner ?? feed.version?.runner ?? "the runner";
  const made = (kind, glyph, text) => ({ label: text, shown: [h("span", { class: `state ${kind}`, key: kind }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), " ", text)] });
  if (app.paused) return made("off", "❚❚", `paused (+${app.missed})`);
  if (feed.phase === "hidden") return made("off", "❚❚", "paused: hidden");
  if (feed.phase === "connecting") return made("busy", "◐", "connecting");
  if (feed.phase === "gone") {
    if (feed.error?.status) return made("bad", "✕", `${feed.error.status}: ${feed.error.message.slice(0, 60)}, trying again (${feed.failures})`);
    return made("bad", "✕", `${who.slice(0, 30)} is gone, reconnecting (${feed.failures})`);
  }
  if (age > STALE_MS) return made("warn", "▲", `stale ${duration(age / 1000)}`);
  if (feed.phase === "polling") return made("warn", "◔", "polling: the stream fails");
  return made("good", "●", age > 2000 ? `live ${duration(Math.round(age / 1000))}` : "live");
}

// ── the live region ─────────────────────────────────────────────────────────────────────────────────────────────────

let saidAt = -Infinity;

/** Say a sentence to a screen reader, at most one in ten seconds. */
function say(text) {
  if (performance.now() - saidAt < SAID_MS) return;
  saidAt = performance.now();
  document.getElementById("said").textContent = text;
}

start();

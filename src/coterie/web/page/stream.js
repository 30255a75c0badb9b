// Keeps the read model up to date: server-sent events, or polling after three streams that failed.
//
// live        events come
// connecting  the first one has not come yet
// polling     streams fail, snapshots are read every two seconds
// gone        nothing answers; it is tried again
// hidden      nobody looks: closed after 30 s

import { Refused, address, ask, headers } from "./api.js";
import { apply, fromSnapshot } from "./store.js";

const HIDDEN_MS = 30_000;
const POLL_MS = 2_000;
const STREAM_AGAIN_MS = 30_000;
const SILENT_MS = 35_000; // two keep-alives
const FAILURES_MOST = 3;
const WAITS_MS = [300, 1_000, 2_000, 5_000];

export class Feed {
  /** @param {(feed: Feed) => void} changed Called after each change of `version` or `phase`. */
  constructor(changed) {
    this.version = null;
    this.phase = "connecting";
    this.failures = 0;
    this.heardAt = 0;
    this.updates = 0;
    this.error = null;
    this.pages = [];
    this.changed = changed;
    this.stopper = null;
    this.hiding = 0;
    document.addEventListener("visibilitychange", () => this.onVisibility());
    addEventListener("online", () => this.failures && this.open());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  /** Have these pages from now on. */
  want(pages) {
    if (pages.join() === this.pages.join()) return;
    this.pages = pages;
    this.failures = 0;
    this.open();
  }

  open() {
    this.close();
    const stopper = new AbortController();
    this.stopper = stopper;
    this.run(stopper.signal).catch((error) => {
      if (!stopper.signal.aborted) throw error;
    });
  }

  close() {
    this.stopper?.abort();
    this.stopper = null;
  }

  onVisibility() {
    clearTimeout(this.hiding);
    if (!document.hidden) {
      if (!this.stopper) this.open();
      return;
    }
    this.hiding = setTimeout(() => {
      this.close();
      this.enter("hidden");
    }, HIDDEN_MS);
  }

  enter(phase, error = null) {
    this.phase = phase;
    this.error = error;
    this.changed(this);
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        await this.stream(signal);
      } catch (error) {
        if (signal.aborted) return;
        this.failures += 1;
        if (error instanceof Refused && error.status === 401) {
          this.enter("gone", error);
          return; // it is opened again with a token
        }
        if (this.failures >= FAILURES_MOST) await this.poll(signal);
        else this.enter("gone", error);
      }
      if (!signal.aborted) await pause(WAITS_MS[Math.min(this.failures, WAITS_MS.length) - 1] ?? WAITS_MS[0], signal);
    }
  }

  /** One stream, until it ends in good order; it is opened again at once. */
  async stream(signal) {
    const known = this.version;
    const resume = known?.id && known.pages === this.pages ? { "last-event-id": known.id } : {};
    const watchdog = new AbortController();
    const both = AbortSignal.any([signal, watchdog.signal]);
    let timer = setTimeout(() => watchdog.abort(), SILENT_MS);
    try {
      const url = address("stream", { pages: this.pages.join() });
      const response = await fetch(url, { headers: headers({ accept: "text/event-stream", ...resume }), signal: both, cache: "no-store" });
      if (!response.ok) throw new Refused(response.status, await response.json().catch(() => null));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) throw new Refused(0, { error: "the stream has ended" });
        clearTimeout(timer);
        timer = setTimeout(() => watchdog.abort(), SILENT_MS);
        const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) if (this.receive(parse(block)) === "bye") return;
      }
    } catch (error) {
      if (error instanceof Refused) throw error;
      throw new Refused(0, { error: "no answer" });
    } finally {
      clearTimeout(timer);
    }
  }

  receive({ event, data, id }) {
    this.heardAt = performance.now();
    if (event === "bye") return "bye";
    if (event === "view") this.take({ ...fromSnapshot(data), id });
    else if (event === "changes" && this.version) this.take({ ...apply(this.version, data), id });
    return event;
  }

  take(version) {
    version.pages = this.pages;
    this.version = version;
    this.updates += 1;
    this.failures = 0;
    this.heardAt = performance.now();
    this.enter("live");
  }

  /** Read snapshots, and try a stream again after a while. */
  async poll(signal) {
    const until = performance.now() + STREAM_AGAIN_MS;
    let etag = null;
    while (!signal.aborted && performance.now() < until) {
      try {
        const more = etag ? { "if-none-match": etag } : {};
        const got = await ask(address("view", { pages: this.pages.join() }), { headers: headers(more), signal });
        etag = got.etag;
        this.heardAt = performance.now();
        if (got.body) {
          this.version = { ...fromSnapshot(got.body), pages: this.pages };
          this.updates += 1;
        }
        this.enter("polling");
      } catch (error) {
        if (signal.aborted) return;
        this.failures += 1;
        this.enter("gone", error);
        if (!(error instanceof Refused)) throw error;
        await pause(WAITS_MS[1], signal);
        return;
      }
      await pause(POLL_MS, signal);
    }
  }
}

function parse(block) {
  let event = "message";
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return { event: data.length || event !== "message" ? event : "keep-alive", data: data.length ? JSON.parse(data.join("\n") || "null") : null, id };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

// Pictures: sparklines, the chart of calls, and lines of time. Each stands beside its row of text.

import { app, now, zone } from "./app.js";
import { h } from "./dom.js";
import { clock, day, duration } from "./format.js";

/** A line of recent values without an axis. */
export function sparkline(values, label) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return h("span", { class: "sparkline" });
  const most = Math.max(...known, 1e-9);
  const step = 100 / (values.length - 1);
  const parts = [];
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) pen = "M";
    else {
      parts.push(`${pen}${(index * step).toFixed(1)} ${(18 - (value / most) * 16).toFixed(1)}`);
      pen = "L";
    }
  });
  return h(
    "svg",
    { class: "sparkline", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { d: parts.join("") }),
  );
}

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Calls and latency over the last minutes, with uPlot. */
export function callsChart() {
  return h("div", {
    class: "chart", role: "img", "aria-label": "calls per second, latency p50 and p99 over time", key: `chart-${app.theme}-${DARK.matches}-${app.zone}`,
    onmount: (box) => { box.plot = null; requestAnimationFrame(() => draw(box)); },
    onpatch: draw,
    onforget: (box) => { box.watcher?.disconnect(); box.plot?.destroy(); },
  });
}

function draw(box) {
  const { at, calls, p50, p99 } = app.samples;
  if (!box.isConnected || at.length < 2 || !window.uPlot) return;
  if (!box.plot) {
    box.plot = plot(box);
    box.watcher = new ResizeObserver(() => box.plot.setSize({ width: box.clientWidth, height: 180 }));
    box.watcher.observe(box);
  }
  if (box.drawn === at[at.length - 1]) return;
  box.drawn = at[at.length - 1];
  box.plot.setData([at, calls, p50, p99]);
}

function plot(box) {
  const ink = (name) => {
    box.style.setProperty("color", `var(${name})`);
    return getComputedStyle(box).color; // a canvas knows no variables
  };
  const axis = { stroke: ink("--dim"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line"), width: 1 }, font: "11px system-ui" };
  return new window.uPlot(
    {
      width: box.clientWidth, height: 180, legend: { show: false }, cursor: { y: false }, padding: [8, 4, 0, 0],
      tzDate: (seconds) => (zone() ? window.uPlot.tzDate(new Date(seconds * 1000), zone()) : new Date(seconds * 1000)),
      fmtDate: () => (date) => clock(date.getTime(), undefined),
      scales: { x: { time: true, range: (_, from, until) => [Math.min(from, until - 60), until] }, calls: { range: fromZero }, ms: { range: fromZero } },
      axes: [{ ...axis, space: 90 }, { ...axis, scale: "calls", size: 56, values: (_, ticks) => ticks.map((each) => `${each}/s`) }, { ...axis, scale: "ms", side: 1, size: 56, grid: { show: false }, values: (_, ticks) => ticks.map((each) => duration(each / 1000)) }],
      series: [
        {},
        { label: "calls/s", scale: "calls", stroke: ink("--accent"), width: 2, fill: ink("--accent-soft"), points: { show: false } },
        { label: "p50", scale: "ms", stroke: ink("--good"), width: 1.5, points: { show: false } },
        { label: "p99", scale: "ms", stroke: ink("--warn"), width: 1.5, dash: [5, 3], points: { show: false } },
      ],
    },
    [[], [], [], []],
    box,
  );
}

function fromZero(_, __, most) {
  return [0, most ? most * 1.1 : 1];
}

// ── lines of time ───────────────────────────────────────────────────────────────────────────────────────────────────

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** A span of time that is drawn from left to right, in percent. */
export class Axis {
  constructor(fromMs, untilMs) {
    this.from = fromMs;
    this.until = Math.max(untilMs, fromMs + 1);
  }

  at(ms) {
    return Math.min(100, Math.max(0, ((ms - this.from) / (this.until - this.from)) * 100));
  }

  has(ms) {
    return ms >= this.from && ms <= this.until;
  }

  /** The scale above the lanes; `few` marks where it is narrow. */
  scale(scheduled, few = 5) {
    const span = (this.until - this.from) / 1000;
    const step = (STEPS_S.find((each) => span / each <= few) ?? 604800 * 4) * 1000;
    const shift = app.zone === "UTC" ? 0 : -new Date(this.from).getTimezoneOffset() * 60_000; // days begin at midnight here
    const marks = [];
    for (let ms = Math.ceil((this.from + shift) / step) * step - shift; ms <= this.until; ms += step) marks.push(ms);
    const isNear = (ms) => this.has(now()) && Math.abs(this.at(ms) - this.at(now())) < 14; // there it says now
    const shown = marks.filter((ms) => this.at(ms) > 4 && this.at(ms) < 96 && !isNear(ms));
    return h(
      "div",
      { class: "scale", "aria-hidden": "true" },
      shown.map((ms) => h("span", { key: ms, style: { left: `${this.at(ms).toFixed(2)}%` } }, step >= 86_400_000 ? day(ms, zone(scheduled)) : clock(ms, zone(scheduled), step < 60_000))),
      this.has(now()) && h("span", { key: "now", class: this.at(now()) > 92 ? "now end" : "now", style: { left: `${this.at(now()).toFixed(2)}%` } }, "now"),
    );
  }

  lane(label, ...children) {
    return h(
      "svg",
      { class: "lane", role: "img", "aria-label": label, width: "100%", height: "24" },
      children,
      this.has(now()) && h("line", { class: "now", x1: `${this.at(now())}%`, x2: `${this.at(now())}%`, y1: 0, y2: 24 }),
    );
  }

  /** A bar; never too short to be seen. */
  bar(fromMs, untilMs, cls, title) {
    const left = this.at(fromMs);
    const width = Math.max(this.at(untilMs) - left, 0.15); // a rect without width is not drawn at all
    return h("rect", { class: cls, x: `${left.toFixed(3)}%`, width: `${width.toFixed(3)}%`, y: 5, height: 14, rx: 2 }, title && h("title", null, title));
  }

  mark(ms, cls, d, title) {
    return h("svg", { x: `${this.at(ms).toFixed(3)}%`, y: 12, overflow: "visible", class: cls }, h("path", { d }), title && h("title", null, title));
  }
}

export const CROSS = "M-4 -5L4 5M4 -5L-4 5";
export const DASH = "M-4 0H4M0 -6V6";
export const RING = "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0";

// Figures, durations, instants and names as text.

const NUMBER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;
const NAME_MOST = 160;

/** A count with thousands separated; nothing for an unknown one. */
export function count(value) {
  return value === null || value === undefined ? "unknown" : NUMBER.format(value);
}

/** `1 shard`, `2 shards`. */
export function counted(value, what, several = `${what}s`) {
  return `${count(value)} ${value === 1 ? what : several}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "unknown";
  return `${value >= 10 || value === 0 ? NUMBER.format(value) : value.toFixed(1)}/s`;
}

export function percent(value) {
  return value === null || value === undefined ? "unknown" : `${Math.round(value * 100)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 1024) return counted(value, "byte");
  if (value < 1024 * 1024) return `${(value / 1024).toFixed(1)} KB`;
  if (value < 1024 ** 3) return `${Math.round(value / 1024 / 1024)} MB`;
  return `${(value / 1024 ** 3).toFixed(1)} GB`;
}

/** `20ms`, `0.3s`, `41s`, `6h 12m`, `2d 4h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  const whole = Math.max(0, seconds);
  if (whole === 0) return "0s";
  if (whole < 0.0995) return `${whole < 0.00995 ? Number((whole * 1000).toFixed(1)) : Math.round(whole * 1000)}ms`;
  if (whole < 9.95) return `${whole.toFixed(1)}s`;
  if (whole < 59.5) return `${Math.round(whole)}s`;
  const minutes = Math.round(whole / 60);
  if (whole < 600) {
    const rounded = Math.round(whole);
    const rest = rounded % 60;
    return rest ? `${Math.floor(rounded / 60)}m ${rest}s` : `${rounded / 60}m`;
  }
  if (minutes < 60) return `${minutes}m`;
  if (minutes < 24 * 60) return minutes % 60 ? `${Math.floor(minutes / 60)}h ${minutes % 60}m` : `${minutes / 60}h`;
  const hours = Math.round(minutes / 60);
  return hours % 24 ? `${Math.floor(hours / 24)}d ${hours % 24}h` : `${hours / 24}d`;
}

/** `in 48s`, `12s ago`, `now`; whole seconds, so that a list does not flicker. */
export function relative(at, nowMs) {
  const seconds = Math.round((Date.parse(at) - nowMs) / 1000);
  if (Number.isNaN(seconds)) return "unknown";
  if (seconds === 0) return "now";
  return seconds > 0 ? `in ${whole(seconds)}` : `${whole(-seconds)} ago`;
}

function whole(seconds) {
  return seconds < 60 ? `${seconds}s` : duration(seconds);
}

const formats = new Map();

function formatter(zone, options) {
  const key = `${zone}${JSON.stringify(options)}`;
  if (!formats.has(key)) {
    try {
      formats.set(key, new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone, hourCycle: "h23" }));
    } catch {
      return formatter("UTC", options);
    }
  }
  return formats.get(key);
}

const DAY = { weekday: "short", day: "2-digit", month: "short", year: "numeric" };
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** `Sat, 28 Mar 2026, 03:00:00 GMT+1`; `zone` undefined: the browser's. */
export function absolute(at, zone) {
  const ms = Date.parse(at);
  if (Number.isNaN(ms)) return "unknown";
  return formatter(zone, { ...DAY, ...CLOCK, timeZoneName: "short" }).format(ms);
}

/** `03:00:00`, for axes and narrow places. */
export function clock(ms, zone, seconds = true) {
  return formatter(zone, seconds ? CLOCK : { hour: "2-digit", minute: "2-digit" }).format(ms);
}

/** `28 Mar`, for axes. */
export function day(ms, zone) {
  return formatter(zone, { day: "numeric", month: "short" }).format(ms);
}

/** Characters that cannot be seen, or turn what follows around, as their numbers. */
export function visible(text) {
  return String(text).replace(CONTROL, (char) => `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** A name for a list: at most 160 characters. */
export function short(text, most = NAME_MOST) {
  const chars = Array.from(String(text).slice(0, most * 4));
  const cut = chars.length > most || String(text).length > most * 4;
  return visible(cut ? `${chars.slice(0, most).join("")}…` : text);
}

/** A value as indented JSON; a text as it is. */
export function json(value) {
  return visible(typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value, null, 2) ?? "null");
}

// The address of what is shown: `#cron?name=nightly&range=6h`. Each page, filter and row has one.

/** Page and parameters of the address. */
export function current() {
  const address = location.hash.slice(1);
  const [page, query] = split(address);
  return { address, page: page || "overview", params: Object.fromEntries(new URLSearchParams(query)) };
}

function split(text) {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

/** The link to a page with parameters; those without a value are left out. */
export function link(page, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return `#${page}${text ? `?${text}` : ""}`;
}

/** Go to a page; `replace`: without a step in the history, for filters that change with each letter. */
export function go(page, params = {}, { replace = false } = {}) {
  const to = link(page, params);
  if (to === location.hash) return;
  if (!replace) location.hash = to;
  else {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

// Requests to the server: relative addresses, names only in the query, errors with their hint.

const BEARER = "coterie.bearer";
let session = null;

/** An answer that is no success: what happened, and what to do. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? (status ? `the server answered with ${status}` : "no answer"));
    this.status = status;
    this.hint = body?.hint ?? "";
    this.renew = body?.renew === true;
  }
}

/** The address of a route, with the parameters that have a value; a list is a parameter for each of its values. */
export function address(route, params = {}) {
  const query = new URLSearchParams();
  for (const [name, given] of Object.entries(params)) {
    for (const value of [given].flat()) if (value !== null && value !== undefined && value !== "") query.append(name, value);
  }
  const text = query.toString();
  return `./api/${route}${text ? `?${text}` : ""}`;
}

/** The token of the setting http_token, for this tab, if a reader has given one. */
export function useBearer(token) {
  if (token) sessionStorage.setItem(BEARER, token);
  else sessionStorage.removeItem(BEARER);
}

export function headers(more = {}) {
  const bearer = sessionStorage.getItem(BEARER);
  return bearer ? { authorization: `Bearer ${bearer}`, ...more } : more;
}

/** The JSON of a route.
 *  @throws {Refused} if the answer is no success, or there is none. */
export async function get(url, options = {}) {
  return (await ask(url, { headers: headers(), ...options })).body;
}

/** Status, ETag and JSON of a route; the JSON is null where nothing changed. */
export async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "no answer", hint: "the runner that served this page may be gone" });
  }
  if (response.status === 304) return { status: 304, etag: response.headers.get("etag"), body: null };
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, body);
  return { status: response.status, etag: response.headers.get("etag"), body };
}

/** Who answers, and what this reader may do. */
export async function readSession() {
  session = await get(address("session"));
  return session;
}

/** Do something, or say what it would do. A token that has expired is read anew once. */
export async function act(name, body, { preview = false } = {}) {
  const url = address(`acts/${name}`, preview ? { preview: 1 } : {});
  const send = () =>
    ask(url, {
      method: "POST",
      headers: headers({ "content-type": "application/json", "x-coterie-act": session?.token ?? "" }),
      body: JSON.stringify(body),
    });
  try {
    return (await send()).body;
  } catch (error) {
    if (!(error instanceof Refused) || !error.renew) throw error;
    await readSession();
    return (await send()).body;
  }
}

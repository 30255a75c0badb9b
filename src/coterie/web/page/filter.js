// The filter of messages: `type:Account state:dead error:Timeout key:order-7`, as the command line takes it.

export const QUALIFIERS = ["type", "id", "method", "state", "error", "key", "tag", "older"];
export const STATES = ["waiting", "running", "scheduled", "dead", "done"];

/** `{given: {type: …}, problem: ""}`; the problem says what cannot be read. */
export function parseFilter(text) {
  const given = {};
  for (const word of split(text)) {
    const colon = word.indexOf(":");
    const qualifier = word.slice(0, colon);
    const value = word.slice(colon + 1);
    if (colon < 1 || !value) return { given, problem: `cannot read "${word}": write qualifier:value, as in type:Account state:dead` };
    if (!QUALIFIERS.includes(qualifier)) return { given, problem: `unknown qualifier "${qualifier}": there are ${QUALIFIERS.join(", ")}` };
    if (qualifier === "state" && !STATES.includes(value)) return { given, problem: `there is no state "${value}": there are ${STATES.join(", ")}` };
    given[qualifier] = value;
  }
  const slash = (given.type ?? "").indexOf("/");
  if (slash > 0) [given.type, given.id] = [given.type.slice(0, slash), given.type.slice(slash + 1)];
  if (given.id && !given.type) return { given, problem: `id is given without type: write type:Account id:${given.id}` };
  return { given, problem: "" };
}

/** Words, of which a part may be quoted. */
function split(text) {
  return [...text.matchAll(/(?:[^\s"']+|"([^"]*)"?|'([^']*)'?)+/g)].map(([word]) => word.replace(/"([^"]*)"?|'([^']*)'?/g, (_, one, other) => one ?? other ?? ""));
}

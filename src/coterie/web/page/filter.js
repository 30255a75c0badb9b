// The filter of messages or jobs: `type:Account state:dead error:Timeout key:order-7`, as the command line takes it.

const MESSAGES = {
  qualifiers: ["type", "id", "method", "state", "error", "key", "tag", "older"],
  states: ["waiting", "running", "scheduled", "dead", "done"],
};
export const JOBS = {
  qualifiers: ["task", "queue", "state", "error", "key", "tag", "older"],
  states: ["waiting", "running", "scheduled", "parked", "dead", "done", "discarded", "cancelled"],
};

/** `{given: {type: …}, problem: ""}`; the problem says what cannot be read. */
export function parseFilter(text, { qualifiers, states } = MESSAGES) {
  const given = {};
  for (const word of split(text)) {
    const colon = word.indexOf(":");
    const qualifier = word.slice(0, colon);
    const value = word.slice(colon + 1);
    if (colon < 1 || !value) return { given, problem: `cannot read "${word}": write qualifier:value, as in ${qualifiers[0]}:name state:dead` };
    if (!qualifiers.includes(qualifier)) return { given, problem: `unknown qualifier "${qualifier}": there are ${qualifiers.join(", ")}` };
    if (qualifier === "state" && !states.includes(value)) return { given, problem: `there is no state "${value}": there are ${states.join(", ")}` };
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

/** A value as a filter has it. */
export function quoted(text) {
  return /[\s"']/.test(text) ? `"${text.replaceAll('"', "'")}"` : text;
}

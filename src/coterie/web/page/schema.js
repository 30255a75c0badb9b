// A form for a JSON schema, and the value that it holds.

import { h } from "./dom.js";

/** Follow references, and drop null of `X | None`: `{schema, optional}`. */
function plain(schema, root) {
  let found = schema ?? {};
  let optional = false;
  for (let depth = 0; depth < 20; depth += 1) {
    if (found.$ref) found = found.$ref.split("/").slice(1).reduce((inner, step) => inner?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? {};
    else if ((found.anyOf ?? found.oneOf)?.some((each) => each.type === "null")) {
      const rest = (found.anyOf ?? found.oneOf).filter((each) => each.type !== "null");
      optional = true;
      if (rest.length !== 1) return { schema: {}, optional };
      [found] = rest;
    } else break;
  }
  return { schema: found, optional };
}

/** Fields for a value of a schema. `path` makes their ids; what no field fits is written as JSON. */
export function fields(given, { root = given, path = "value", label = "value", required = true } = {}) {
  const { schema, optional } = plain(given, root);
  const title = `${schema.title && path === "value" ? schema.title : label}${optional || !required ? " (may be left empty)" : ""}`;
  const wrap = (control, help) => h("p", { class: "field", key: path }, h("label", { for: path }, title), control, (help ?? schema.description) && h("span", { class: "dim" }, help ?? schema.description));
  if (schema.type === "object" && schema.properties) {
    return h("fieldset", { key: path }, h("legend", null, title), Object.entries(schema.properties).map(([name, inner]) => fields(inner, { root, path: `${path}.${name}`, label: name, required: (schema.required ?? []).includes(name) })));
  }
  if (schema.enum || schema.const !== undefined) {
    const all = schema.enum ?? [schema.const];
    return wrap(h("select", { id: path, "data-kind": "enum" }, (optional || !required) && h("option", { key: "none", value: "" }, ""), all.map((each) => h("option", { key: JSON.stringify(each), value: JSON.stringify(each) }, String(each)))));
  }
  if (schema.type === "boolean") {
    return wrap(h("select", { id: path, "data-kind": "enum" }, (optional || !required) && h("option", { key: "none", value: "" }, ""), h("option", { key: "true", value: "true" }, "yes"), h("option", { key: "false", value: "false" }, "no")));
  }
  if (schema.type === "integer" || schema.type === "number") return wrap(h("input", { id: path, type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, "data-kind": "number", required: required && !optional }));
  if (schema.type === "string") return wrap(h("input", { id: path, type: "text", "data-kind": "string", autocomplete: "off", required: required && !optional && (schema.minLength ?? 0) > 0 }), schema.format && `${schema.format}${schema.format === "date-time" ? ", as 2026-03-28T03:00:00Z" : ""}`);
  if (schema.type === "null") return wrap(h("input", { id: path, type: "text", "data-kind": "null", value: "null", disabled: true }));
  return wrap(h("textarea", { id: path, rows: "3", spellcheck: "false", "data-kind": "json", placeholder: "JSON" }), "written as JSON");
}

/** What the fields hold.
 *  @throws {Error} which says what cannot be read. */
export function valueOf(given, { root = given, path = "value", required = true } = {}) {
  const { schema, optional } = plain(given, root);
  if (schema.type === "object" && schema.properties) {
    const found = {};
    for (const [name, inner] of Object.entries(schema.properties)) {
      const value = valueOf(inner, { root, path: `${path}.${name}`, required: (schema.required ?? []).includes(name) });
      if (value !== undefined) found[name] = value;
    }
    return found;
  }
  const field = document.getElementById(path);
  const text = field.value;
  const kind = field.dataset.kind;
  if (kind === "null") return null;
  if (text === "" && (optional || !required)) return required ? null : undefined;
  if (kind === "string") return text;
  const called = path.split(".").slice(1).join(".") || "the value";
  if (kind === "number") {
    if (text === "" || Number.isNaN(Number(text))) throw new Error(`${called} has to be a number`);
    return Number(text);
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${called} is no JSON`);
  }
}

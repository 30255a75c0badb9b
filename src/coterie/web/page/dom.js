// Makes and updates elements from descriptions of them. Values become text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "open", "hidden"]);
const NO_CHILDREN = [];

/** An element: its tag, attributes (`on…` are listeners, `style` an object, `key` its identity in a list) and children. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children, []), key: props?.key, node: null };
}

/** A description that is made anew only if one of `deps` changed; its tag has to stay the same. */
export function memo(key, deps, make) {
  return { memo: deps, make, key, node: null };
}

/** Show descriptions in an element, changing only what differs from those shown before. The focus stays. */
export function render(root, children) {
  const focused = document.activeElement;
  const next = flat([children], []);
  patchChildren(root, root.described ?? NO_CHILDREN, next, root.namespaceURI === SVG);
  root.described = next;
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function flat(children, into) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true || child === "") continue;
    if (Array.isArray(child)) flat(child, into);
    else into.push(typeof child === "object" ? child : { text: String(child), node: null });
  }
  return into;
}

function identity(vnode) {
  return vnode.key ?? null;
}

function kind(vnode) {
  return vnode.memo ? "memo" : (vnode.tag ?? "text");
}

function patchChildren(parent, before, after, svg) {
  const keyed = new Map();
  const plain = new Map();
  for (const old of before) {
    const id = identity(old);
    if (id !== null) keyed.set(id, old);
    else if (plain.has(kind(old))) plain.get(kind(old)).push(old);
    else plain.set(kind(old), [old]);
  }
  const matched = after.map((vnode) => {
    const id = identity(vnode);
    if (id === null) return plain.get(kind(vnode))?.shift();
    const old = keyed.get(id);
    if (!old || kind(old) !== kind(vnode)) return undefined;
    keyed.delete(id);
    return old;
  });
  const kept = new Set(matched);
  for (const old of before) if (!kept.has(old)) remove(old);
  let place = parent.firstChild;
  after.forEach((vnode, index) => {
    const old = matched[index];
    if (old) patch(old, vnode, svg);
    else create(vnode, svg);
    if (vnode.node === place) place = place.nextSibling;
    else parent.insertBefore(vnode.node, place);
  });
}

function create(vnode, svg) {
  if (vnode.memo) {
    vnode.made = vnode.make();
    create(vnode.made, svg);
    vnode.node = vnode.made.node;
    return;
  }
  if (vnode.tag === undefined) {
    vnode.node = document.createTextNode(vnode.text);
    return;
  }
  const inside = svg || vnode.tag === "svg";
  const node = inside ? document.createElementNS(SVG, vnode.tag) : document.createElement(vnode.tag);
  vnode.node = node;
  node.handlers = {};
  patchChildren(node, NO_CHILDREN, vnode.children, inside);
  for (const [name, value] of Object.entries(vnode.props)) set(node, name, undefined, value);
  vnode.props.onmount?.(node);
}

function patch(old, vnode, svg) {
  vnode.node = old.node;
  if (vnode.memo) {
    if (same(old.memo, vnode.memo)) {
      vnode.made = old.made;
      return;
    }
    vnode.made = vnode.make();
    patch(old.made, vnode.made, svg);
    return;
  }
  if (vnode.tag === undefined) {
    if (old.text !== vnode.text) vnode.node.data = vnode.text;
    return;
  }
  patchChildren(vnode.node, old.children, vnode.children, svg || vnode.tag === "svg");
  for (const name of Object.keys(old.props)) if (!(name in vnode.props)) set(vnode.node, name, old.props[name], undefined);
  for (const [name, value] of Object.entries(vnode.props)) {
    if (name === "style" || old.props[name] !== value) set(vnode.node, name, old.props[name], value);
  }
  vnode.props.onpatch?.(vnode.node);
}

function same(one, other) {
  return one.length === other.length && one.every((value, index) => Object.is(value, other[index]));
}

function remove(vnode) {
  forget(vnode);
  vnode.node.remove();
}

function forget(vnode) {
  if (vnode.made) forget(vnode.made);
  vnode.props?.onforget?.(vnode.node);
  for (const child of vnode.children ?? NO_CHILDREN) forget(child);
}

function set(node, name, before, value) {
  if (name === "key" || name === "onmount" || name === "onpatch" || name === "onforget") return;
  if (name.startsWith("on")) listen(node, name.slice(2), value);
  else if (name === "style") setStyle(node, before ?? {}, value ?? {});
  else if (PROPERTIES.has(name) && name in node) node[name] = value ?? (name === "value" ? "" : false);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (name === "href" && !/^(#|\.\/)/.test(text)) throw new Error("links stay on this page");
    node.setAttribute(name, text);
  }
}

function listen(node, event, handler) {
  if (!(event in node.handlers)) node.addEventListener(event, (given) => node.handlers[event]?.(given));
  node.handlers[event] = handler ?? null;
}

function setStyle(node, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) node.style.removeProperty(name);
  for (const [name, value] of Object.entries(after)) {
    if (before[name] !== value) node.style.setProperty(name, String(value));
  }
}

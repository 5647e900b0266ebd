// Elements, numbers for people, and the tooltip. All text goes through textContent: nothing is ever parsed as HTML.
"use strict";

const SVG_SPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_SPACE, tag), attributes, children);
}

const grouped = new Intl.NumberFormat("en-US");

function count(number, thing) {
  return `${grouped.format(number)} ${thing}${number === 1 ? "" : "s"}`;
}

function fixed(value, digits) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Picoseconds as microseconds, with about four digits.
function us(picoseconds) {
  if (picoseconds === null || picoseconds === undefined) return "";
  const value = picoseconds / 1e6;
  return fixed(value, Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2);
}

function usUnit(picoseconds) {
  return `${us(picoseconds)} \u00b5s`;
}

function bytes(size) {
  for (const [unit, name] of [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
  ]) {
    if (size >= unit) return `${fixed(size / unit, size >= 100 * unit ? 0 : size >= 10 * unit ? 1 : 2)} ${name}`;
  }
  return `${size} B`;
}

function percent(share, digits = 2) {
  return share === null || share === undefined ? "" : `${fixed(100 * share, digits)}%`;
}

// A share of greedy's time: a tie, or a percentage that has a sign only where greedy was cheaper (it obeys no cap).
function savedText(share) {
  return share === 0 ? "tie" : share > 0 ? percent(share) : `\u2212${percent(-share)}`;
}

// What a difference between two schedules saves, in nanoseconds where microseconds would say zero.
function gainText(picoseconds) {
  const size = Math.abs(picoseconds);
  if (!size) return "a tie";
  const time = size < 5e4 ? `${fixed(size / 1e3, 1)} ns` : usUnit(size);
  return picoseconds > 0 ? `saves ${time}` : `costs ${time}`;
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  return value >= 100 ? fixed(value, 0) : value >= 10 ? fixed(value, 1) : fixed(value, 2);
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

function geomean(values) {
  return values.length ? Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length) : null;
}

const tip = document.getElementById("tip");

// Show lines of text beside the pointer while it is over a node; the first line is set off.
function explain(node, lines) {
  node.setAttribute("aria-label", lines.join(", "));
  node.addEventListener("pointerenter", (event) => {
    tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
    tip.hidden = false;
    moveTip(event);
  });
  node.addEventListener("pointermove", moveTip);
  node.addEventListener("pointerleave", hideTip);
  return node;
}

function hideTip() {
  tip.hidden = true;
}

function moveTip(event) {
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10}px`;
}

// The data of a graph: gzip in base64, unpacked when the graph is opened.
const unpacked = new Map();

async function unpack(position) {
  if (!unpacked.has(position)) {
    const text = document.getElementById(`graph-${position}`).textContent;
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(position, JSON.parse(await new Response(stream).text()));
  }
  return unpacked.get(position);
}

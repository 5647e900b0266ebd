// The panel beside the pictures: all that is known of a kernel or of an arrow.
"use strict";

const boundOf = (kernel) => (kernel.memory >= kernel.compute ? "memory" : "compute");

function kernelLink(side, number, go) {
  return el("button", { type: "button", class: `link side-${side}`, onclick: () => go(side, number) }, `k${number}`);
}

function kernelDetail(graph, side, number, op, go) {
  const kernel = graph.sides[side].kernels[number];
  const generated = kernel.kind === "loop";
  const bound = boundOf(kernel);
  const device = graph.devices[0];
  const moved = kernel.read + kernel.write;
  const share = kernel.cost ? ((moved / 2 ** 20) * device.dram) / kernel.cost : 0;
  const facts = [
    ["predicted time", usUnit(kernel.cost)],
    ["of it launch", usUnit(kernel.launch)],
    ["memory / compute", `${usUnit(kernel.memory)} / ${usUnit(kernel.compute)}`],
    ["read / written", `${bytes(kernel.read)} / ${bytes(kernel.write)}`],
    ["share of peak bandwidth", percent(share, 0)],
    ["live memory", bytes(kernel.live)],
    ["walks", generated ? kernel.scheme : "\u2013"],
  ];
  return el(
    "div",
    { class: "detail" },
    el("h3", {}, el("span", { class: `side-${side}` }, graph.names[side]), ` k${number}`),
    el(
      "p",
      { class: "tags" },
      el("span", { class: "tag" }, generated ? "generated kernel" : "library call"),
      el("span", { class: "tag" }, `bound by ${bound}`),
      el("span", { class: "tag" }, count(kernel.ops.length, "op")),
    ),
    timeBar(kernel),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat()),
    counterparts(graph, side, number, go),
    opList(graph, kernel, op),
    arrowList(graph, side, number, go),
    code(graph.texts[kernel.code], generated, side),
  );
}

function timeBar(kernel) {
  const rest = Math.max(kernel.memory, kernel.compute);
  const total = Math.max(1, kernel.launch + rest);
  const part = (name, value, hint) => {
    const node = el("i", { class: name, title: hint });
    node.style.width = `${(100 * value) / total}%`;
    return node;
  };
  const name = boundOf(kernel);
  return el("div", { class: "timebar" }, part("launch", kernel.launch, "launch"), part(name, rest, `${name} time`));
}

function counterparts(graph, side, number, go) {
  const other = 1 - side;
  const mine = new Set(graph.sides[side].kernels[number].ops);
  const found = [];
  graph.sides[other].kernels.forEach((kernel, k) => {
    const common = kernel.ops.filter((op) => mine.has(op)).length;
    if (common) found.push([k, common, kernel.ops.length]);
  });
  const items = found.flatMap(([k, common, all], position) => [
    position ? ", " : "",
    kernelLink(other, k, go),
    common === all ? ` (all its ${all})` : ` (${common} of its ${all})`,
  ]);
  return el(
    "p",
    {},
    `In ${graph.names[other]}\u2019s schedule its ops are in `,
    items.length ? items : "no kernel",
    ".",
  );
}

// Ops in order; those that follow each other from one source line are told of together.
function opList(graph, kernel, chosen) {
  const groups = [];
  for (const op of kernel.ops) {
    const [name, , node, module, source] = graph.ops[op];
    if (!groups.length || groups.at(-1).module !== module || groups.at(-1).source !== source) {
      groups.push({ module, source, names: [] });
    }
    const title = node && node !== name ? `node ${node}` : null;
    groups.at(-1).names.push(el("b", { class: op === chosen ? "here" : null, title }, name), " ");
  }
  const rows = groups.map(({ module, source, names }) =>
    el(
      "li",
      {},
      el("div", {}, names),
      module ? el("span", { class: "module" }, module) : null,
      source ? el("code", {}, source) : null,
    ),
  );
  return el(
    "details",
    { open: groups.length <= 25 || chosen !== null },
    el("summary", {}, `Ops (${kernel.ops.length}) and their source lines`),
    el("ul", { class: "ops" }, rows),
  );
}

function arrowList(graph, side, number, go) {
  const arrows = graph.sides[side].arrows.filter(([from, to]) => from === number || to === number);
  const rows = arrows.map((arrow) => arrowText(graph, side, arrow, number, go));
  const title = `Neighbours (${rows.length}), and why they are kernels of their own`;
  if (!rows.length) return el("p", { class: "empty" }, "It reads inputs and writes outputs only.");
  return el("details", { open: rows.length <= 12 }, el("summary", {}, title), el("ul", { class: "arrows" }, rows));
}

function arrowText(graph, side, [from, to, size, buffers, reason], number, go) {
  const what = buffers.length ? `${bytes(size)} (${shortened(buffers)})` : "nothing: order only";
  const line =
    from === number
      ? ["\u2193 to ", kernelLink(side, to, go), ` ${what}`]
      : ["\u2191 from ", kernelLink(side, from, go), ` ${what}`];
  return el("li", {}, line, el("div", { class: "reason" }, graph.texts[reason]));
}

function shortened(names) {
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}

function arrowDetail(graph, side, number, go) {
  const [from, to, size, buffers, reason] = graph.sides[side].arrows[number];
  return el(
    "div",
    { class: "detail" },
    el("h3", {}, el("span", { class: `side-${side}` }, graph.names[side]), ` k${from} \u2192 k${to}`),
    el(
      "p",
      {},
      kernelLink(side, from, go),
      buffers.length ? ` writes what ` : " must run before ",
      kernelLink(side, to, go),
      buffers.length ? ` reads: ${bytes(size)} in ${count(buffers.length, "buffer")}.` : ".",
    ),
    el("p", { class: "buffers" }, buffers.join(", ")),
    el("h4", {}, "Why they are two kernels"),
    el("p", { class: "reason" }, graph.texts[reason]),
    el(
      "p",
      { class: "hint" },
      "All else unchanged. What the best schedule with two ops in one kernel would cost: optfuse explain.",
    ),
  );
}

function differenceDetail(graph, number, go) {
  const item = graph.differences[number];
  const kernels = [0, 1].map((side) => item[side].map((k) => ({ side, k, ...graph.sides[side].kernels[k] })));
  const sum = (side, value) => kernels[side].reduce((total, kernel) => total + value(kernel), 0);
  const rows = [
    ["kernels", () => 1, String],
    ["predicted time", (kernel) => kernel.cost, usUnit],
    ["of it launches", (kernel) => kernel.launch, usUnit],
    ["memory time", (kernel) => kernel.memory, usUnit],
    ["compute time", (kernel) => kernel.compute, usUnit],
    ["bytes read", (kernel) => kernel.read, bytes],
    ["bytes written", (kernel) => kernel.write, bytes],
  ].map(([name, value, show]) =>
    el(
      "tr",
      {},
      el("td", {}, name),
      [0, 1].map((side) => el("td", { class: "number" }, show(sum(side, value)))),
    ),
  );
  const list = (side) =>
    el(
      "ul",
      { class: "arrows" },
      kernels[side].map((kernel) =>
        el(
          "li",
          {},
          kernelLink(side, kernel.k, go),
          ` ${usUnit(kernel.cost)}, ${count(kernel.ops.length, "op")}, bound by ${boundOf(kernel)}; `,
          `reads ${bytes(kernel.read)}, writes ${bytes(kernel.write)}`,
        ),
      ),
    );
  return el(
    "div",
    { class: "detail" },
    el("h3", { class: "gain" }, gainText(item[2])),
    el(
      "p",
      { class: "hint" },
      "The same ops, cut into kernels in two ways. A part may cost more where it lets another save.",
    ),
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", {}, ""),
          graph.names.map((name) => el("th", { class: "number" }, name)),
        ),
      ),
      el("tbody", {}, rows),
    ),
    graph.names.flatMap((name, side) => [el("h4", { class: `side-${side}` }, `${name}\u2019s kernels`), list(side)]),
  );
}

function code(text, generated, side) {
  if (!text) {
    const why = generated && side === 0 ? "It is in no schedule that was emitted." : "Nothing was emitted for it.";
    return el("p", { class: "empty" }, why);
  }
  const copy = el(
    "button",
    {
      type: "button",
      class: "small",
      onclick: async () => {
        await navigator.clipboard.writeText(text);
        copy.textContent = "copied";
      },
    },
    "copy",
  );
  return el(
    "details",
    { open: true },
    el("summary", {}, generated ? "Emitted Triton " : "Call ", copy),
    el("pre", {}, el("code", {}, coloured(text))),
  );
}

// In this order: comments, strings, words of the language, names of libraries, numbers.
const TOKENS = new RegExp(
  [
    /(#[^\n]*)/,
    /("""[\s\S]*?"""|"[^"\n]*")/,
    /\b(def|for|in|if|else|return|range)\b/,
    /(@?\b(?:tl|triton|libdevice|aten|torch)\.[\w.]+)/,
    /\b(\d[\d.e+-]*)\b/,
  ]
    .map((part) => part.source)
    .join("|"),
  "g",
);
const TOKEN_NAMES = ["comment", "string", "keyword", "library", "figure"];

function coloured(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(TOKENS)) {
    parts.push(text.slice(last, found.index));
    const kind = TOKEN_NAMES[found.slice(1).findIndex((group) => group !== undefined)];
    parts.push(el("span", { class: `code-${kind}` }, found[0]));
    last = found.index + found[0].length;
  }
  return [...parts, text.slice(last)];
}

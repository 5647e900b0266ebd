// One graph: a partition (greedy's, or another solver's) beside the chosen one, the places where they differ, and
// details of what is picked.
"use strict";

// What a graph's data says of the chosen schedule and of the one that is shown beside it.
function pairOf(data, name) {
  const other = data.beside.find((candidate) => candidate.name === name) ?? data.beside[0];
  return {
    ...data,
    names: [other.name, "chosen"],
    sides: [other.side, data.chosen],
    differences: other.differences,
    before: other.objective,
    peaks: [other.peak, data.peak],
  };
}

class GraphView {
  // compare(name) shows the graph with another schedule beside
  constructor(data, name, compare) {
    const graph = pairOf(data, name);
    Object.assign(this, { graph, compare });
    this.changed = [0, 1].map((side) => new Set(graph.differences.flatMap((item) => item[side])));
    this.marks = new Map();
    graph.differences
      .flatMap((item) => item[0])
      .forEach((kernel, number) => {
        for (const op of graph.sides[0].kernels[kernel].ops) this.marks.set(op, number);
      });
    this.pictures = [0, 1].map(
      (side) => new Picture(graph, side, this.marks, this.changed[side], (where, what) => this.pick(where, what)),
    );
    this.detail = el("aside", { class: "side-panel", "aria-live": "polite" });
    this.go = (side, number) => {
      this.pick(side, { kernel: number, op: null });
      this.pictures[side].show([number]);
    };
    this.node = el(
      "div",
      { class: "graph" },
      this.headline(),
      lanesSection(graph, this.go),
      el("div", { class: "stage" }, this.differences(), this.panes(), this.detail),
      el("section", { class: "plots" }, liveCard(graph), progressCard(graph), bandwidthCard(graph, this.go)),
      el("section", {}, el("h2", {}, "Kernels of the chosen schedule"), kernelTable(graph, 1, this.go)),
    );
    this.pick(1, null);
  }

  // After the node is in the page.
  start() {
    for (const picture of this.pictures) picture.measure();
    const first = this.graph.differences[0];
    if (first) this.showDifference(0);
    else for (const picture of this.pictures) picture.top();
  }

  resized() {
    for (const picture of this.pictures) {
      picture.measure();
      picture.draw();
    }
  }

  headline() {
    const { graph } = this;
    const share = graph.before ? (graph.before - graph.objective) / graph.before : 0;
    const figure = (value, label) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, label));
    const [before, after] = graph.sides.map((side) => side.kernels.length);
    return el(
      "div",
      { class: "headline" },
      el("h1", {}, graph.name),
      el("p", { class: "certificate" }, graph.status === "OPTIMAL" ? "\u2713 " : "", graph.certificate, "."),
      el(
        "section",
        { class: "tiles" },
        figure(
          `${us(graph.before)} \u2192 ${us(graph.objective)} \u00b5s`,
          `predicted, ${graph.names[0]} \u2192 chosen`,
        ),
        figure(savedText(share), share === 0 ? `with ${graph.names[0]}` : "saved"),
        figure(us(graph.bound), "\u00b5s: proven lower bound"),
        figure(`${before} \u2192 ${after}`, "kernels"),
        figure(grouped.format(graph.ops.length), "ops"),
        figure(`${bytes(graph.peaks[0])} \u2192 ${bytes(graph.peaks[1])}`, "peak memory"),
        figure(`${seconds(graph.wall_s)} s`, "to solve"),
      ),
      graph.given_up.length ? el("p", { class: "hint" }, `Given up: ${graph.given_up.join("; ")}`) : null,
    );
  }

  panes() {
    const { graph } = this;
    return el(
      "div",
      { class: "panes" },
      [0, 1].map((side) =>
        el(
          "div",
          { class: "half" },
          el(
            "h2",
            { class: `side-${side}` },
            `${graph.names[side]}: ${count(graph.sides[side].kernels.length, "kernel")}, `,
            usUnit(side ? graph.objective : graph.before),
          ),
          this.pictures[side].node,
        ),
      ),
    );
  }

  // Which schedule is shown beside the chosen one, where there are several.
  choice() {
    const names = this.graph.beside.map(({ name }) => name);
    if (names.length < 2) return null;
    const options = names.map((name) => el("option", { value: name, selected: name === this.graph.names[0] }, name));
    const change = (event) => this.compare(event.target.value);
    return el("label", { class: "beside" }, "beside ", el("select", { id: "beside", onchange: change }, options));
  }

  differences() {
    const { graph } = this;
    const groups = new Map();
    graph.differences.forEach(([before, after, gain], number) => {
      const sizes = (side, kernels) =>
        kernels
          .map((k) => this.graph.sides[side].kernels[k].ops.length)
          .sort((a, b) => a - b)
          .join();
      const key = `${us(gain)}|${sizes(0, before)}|${sizes(1, after)}`;
      groups.set(key, [...(groups.get(key) ?? []), number]);
    });
    const items = [...groups.values()].map((numbers) => this.differenceButton(numbers));
    const find = el("input", {
      type: "search",
      id: "find",
      placeholder: "find an op\u2026",
      "aria-label": "find an op",
      onkeydown: (event) => {
        if (event.key === "Enter") this.find(event.target);
      },
      oninput: (event) => {
        this.found = -1;
        event.target.classList.remove("none");
      },
    });
    return el(
      "nav",
      { class: "differences" },
      this.choice(),
      find,
      el("h2", {}, `Differences (${graph.differences.length})`),
      items.length
        ? el("ol", {}, items)
        : el("p", { class: "empty" }, `The chosen kernels are ${graph.names[0]}\u2019s.`),
      el(
        "div",
        { class: "legend tall" },
        el("span", { class: "key" }, el("i", { class: "box-changed" }), "kernel that only one side has"),
        el("span", { class: "key" }, el("i", { class: "box-loop" }), "the same on both sides"),
        el("span", { class: "key" }, el("i", { class: "box-library" }), "library call"),
        el(
          "span",
          { class: "key" },
          el("i", { class: "mark-0" }),
          `an op\u2019s colour: its kernel in ${graph.names[0]}\u2019s`,
        ),
      ),
      el(
        "p",
        { class: "hint" },
        "Drag or scroll to move, Ctrl and scroll to zoom. Click a kernel, an op or an arrow. ",
        "\u00d72 after an op: two kernels compute it.",
      ),
    );
  }

  differenceButton(numbers) {
    const [before, after, gain] = this.graph.differences[numbers[0]];
    let turn = -1;
    const place = el("span", { class: "turn" }, numbers.length > 1 ? `\u00d7${numbers.length}` : "");
    const button = el(
      "button",
      {
        type: "button",
        "data-difference": numbers.join(" "),
        onclick: () => {
          turn = (turn + 1) % numbers.length;
          if (numbers.length > 1) place.textContent = `${turn + 1}/${numbers.length}`;
          this.showDifference(numbers[turn]);
        },
      },
      el("b", {}, gainText(gain)),
      place,
      el("span", { class: "small-text" }, `${before.length} \u2192 ${count(after.length, "kernel")}`),
    );
    return el("li", {}, button);
  }

  showDifference(number) {
    const item = this.graph.differences[number];
    for (const side of [0, 1]) {
      this.pictures[side].select(item[side]);
      this.pictures[side].show(item[side]);
    }
    this.detail.replaceChildren(differenceDetail(this.graph, number, this.go));
    this.detail.scrollTop = 0;
    for (const button of this.node.querySelectorAll("[data-difference]")) {
      button.classList.toggle("current", button.dataset.difference.split(" ").includes(String(number)));
    }
  }

  // Choose what was clicked; the other side shows where its ops are.
  pick(side, what) {
    const { graph } = this;
    if (!what) {
      for (const picture of this.pictures) if (picture.near !== undefined) picture.select([]);
      this.detail.replaceChildren(
        el(
          "p",
          { class: "empty" },
          "Click a kernel to see its ops, source lines, Triton and ",
          "neighbours; an arrow to see why it is one.",
        ),
      );
      return;
    }
    const other = 1 - side;
    if (what.arrow !== undefined) {
      const [from, to] = graph.sides[side].arrows[what.arrow];
      this.pictures[side].select([from, to], null, what.arrow);
      this.pictures[other].select([]);
      this.detail.replaceChildren(arrowDetail(graph, side, what.arrow, this.go));
      return;
    }
    const ops = what.op === null ? graph.sides[side].kernels[what.kernel].ops : [what.op];
    const there = graph.sides[other].kernels.flatMap((kernel, k) =>
      kernel.ops.some((op) => ops.includes(op)) ? [k] : [],
    );
    this.pictures[side].select([what.kernel], what.op);
    this.pictures[other].select(there, what.op);
    this.pictures[other].show(there);
    this.detail.replaceChildren(kernelDetail(graph, side, what.kernel, what.op, this.go));
    const here = this.detail.querySelector("b.here");
    this.detail.scrollTop = here ? here.offsetTop - this.detail.offsetTop - 80 : 0;
  }

  find(input) {
    const text = input.value.trim().toLowerCase();
    const hits = text ? this.graph.ops.flatMap((op, k) => (op[0].toLowerCase().includes(text) ? [k] : [])) : [];
    input.classList.toggle("none", text !== "" && !hits.length);
    if (!hits.length) return;
    this.found = ((this.found ?? -1) + 1) % hits.length;
    const op = hits[this.found];
    const kernel = this.graph.sides[1].kernels.findIndex((candidate) => candidate.ops.includes(op));
    if (kernel < 0) return;
    this.pick(1, { kernel, op });
    this.pictures[1].show([kernel]);
  }
}

function liveCard(graph) {
  const title = "Live memory",
    hint = "over the predicted run";
  const lines = graph.sides.map(({ kernels, lanes }) => {
    let now = 0;
    const points = kernels.map((kernel, number) => {
      const at = lanes ? lanes.launches[number] : now;
      now += kernel.cost;
      return [at / 1e6, kernel.live / 2 ** 20];
    });
    if (lanes) now = lanes.makespan;
    return points.length ? [...points, [now / 1e6, points.at(-1)[1]]] : [];
  });
  const all = lines.flat();
  if (!all.length) return emptyCard(title, hint, "There are no kernels.");
  const plot = frame(
    { kind: "linear", domain: [0, Math.max(...all.map(([x]) => x))], label: "predicted time [\u00b5s]" },
    { kind: "linear", domain: [0, Math.max(...all.map(([, y]) => y)) * 1.05 || 1], label: "live memory [MiB]" },
  );
  lines.forEach((points, side) => drawLine(plot, points, `side-${side}`, true));
  return card(
    title,
    hint,
    graph.names.map((name, side) => [`side-${side}`, `${name}, peak ${bytes(graph.peaks[side])}`]),
    plot.root,
  );
}

function progressCard(graph) {
  const title = "Objective and bound over time",
    hint = "of the solve";
  const records = graph.progress.map(([second, ...rest]) => [Math.max(second, 0.01), ...rest]);
  if (records.length < 2) return emptyCard(title, hint, "The plan tells nothing of how its solve went.");
  const values = records.flatMap(([, objective, bound]) => [objective / 1e6, bound / 1e6]);
  const [start, end] = [records[0][0], Math.max(records.at(-1)[0], graph.wall_s) * 1.05];
  const plot = frame(
    { kind: "log", domain: [start, Math.max(end, start * 2)], label: "wall time [s]" },
    { kind: "linear", domain: domain("linear", values), label: "predicted time [\u00b5s]" },
  );
  drawLine(plot, [...records.map((r) => [r[0], r[1] / 1e6]), [end, records.at(-1)[1] / 1e6]], "side-1", true);
  drawLine(plot, [...records.map((r) => [r[0], r[2] / 1e6]), [end, records.at(-1)[2] / 1e6]], "bound", true);
  return card(
    title,
    hint,
    [
      ["side-1", "best schedule"],
      ["bound", "proven lower bound"],
    ],
    plot.root,
  );
}

function bandwidthCard(graph, go) {
  const title = "Bytes moved by a kernel",
    hint = "and its share of peak bandwidth";
  const device = graph.devices[0];
  const points = graph.sides[1].kernels.flatMap((kernel, number) => {
    const moved = kernel.read + kernel.write;
    if (!moved || !kernel.cost) return [];
    const share = (100 * (moved / 2 ** 20) * device.dram) / kernel.cost;
    const name = kernel.kind !== "loop" ? "library" : boundOf(kernel);
    const lines = [`k${number}: ${usUnit(kernel.cost)}`, `${bytes(moved)}, ${fixed(share, 0)}% of peak`];
    return [{ x: moved / 2 ** 20, y: share, class: `part-${name}`, lines, open: () => go(1, number) }];
  });
  if (!points.length) return emptyCard(title, hint, "No kernel moves any bytes.");
  const plot = frame(
    {
      kind: "log",
      domain: domain(
        "log",
        points.map((p) => p.x),
      ),
      label: "bytes read and written [MiB]",
    },
    {
      kind: "linear",
      domain: [0, Math.max(100, ...points.map((p) => p.y * 1.03))],
      label: "share of DRAM bandwidth [%]",
    },
  );
  drawPoints(plot, points, 3.5);
  const legend = [
    ["part-memory", "bound by memory"],
    ["part-compute", "bound by compute"],
    ["part-library", "library call"],
  ];
  return card(title, hint, legend, plot.root);
}

function kernelTable(graph, side, go) {
  const rows = graph.sides[side].kernels.map((kernel, number) => ({ ...kernel, number }));
  const number = (key, label, cell) => ({ key, label, number: true, value: (row) => row[key], cell });
  const columns = [
    number("number", "k", (row) =>
      kernelLink(side, row.number, (where, which) => {
        go(where, which);
        document.querySelector(".stage").scrollIntoView({ block: "start" });
      }),
    ),
    { key: "ops", label: "ops", value: (row) => row.ops.length, number: true },
    { key: "names", label: "first ops", value: (row) => shortened(row.ops.map((op) => graph.ops[op][0])) },
    { key: "kind", label: "kind", value: (row) => (row.kind === "loop" ? "generated" : row.kind) },
    number("cost", "\u00b5s", (row) => us(row.cost)),
    number("read", "read", (row) => bytes(row.read)),
    number("write", "written", (row) => bytes(row.write)),
    number("live", "live", (row) => bytes(row.live)),
    { key: "bound", label: "bound by", value: (row) => boundOf(row) },
    { key: "scheme", label: "walks", value: (row) => (row.kind === "loop" ? row.scheme : "") },
  ];
  return sortedTable(columns, rows, { sort: "cost", down: true, class: "kernels" }).node;
}

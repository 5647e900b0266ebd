// Communication beside computation: for each schedule a lane of the device's kernels and one for each communicator,
// both schedules on one time axis. Where the device waits, its lane is hatched.
"use strict";

const LANES = { width: 1500, left: 118, right: 20, head: 24, lane: 26, gap: 6, between: 16, foot: 40, zooms: 1.6 };

function lanesSection(graph, go) {
  if (!graph.sides[1].lanes) return null;
  return new LanesView(graph, go).node;
}

class LanesView {
  constructor(graph, go) {
    Object.assign(this, { graph, go, zoom: 1 });
    this.frame = el("div", { class: "lanes-frame" });
    const button = (text, hint, act) =>
      el("button", { type: "button", title: hint, "aria-label": hint, onclick: act }, text);
    const keys = [
      ["generated", "generated kernel"],
      ["library", "library call"],
      ["transfer", "transfer"],
      ["exposed", "exposed: the device waits"],
    ];
    this.node = el(
      "section",
      { class: "lanes" },
      el("h2", {}, "Communication beside computation"),
      this.figures(),
      el(
        "div",
        { class: "legend" },
        keys.map(([name, label]) => el("span", { class: "key" }, el("i", { class: `key-${name}` }), label)),
        el(
          "span",
          { class: "zoom-lanes" },
          button("+", "longer", () => this.zoomed(this.zoom * LANES.zooms)),
          button("\u2212", "shorter", () => this.zoomed(Math.max(1, this.zoom / LANES.zooms))),
          button("fit", "the whole call", () => this.zoomed(1)),
        ),
      ),
      this.frame,
    );
    this.draw();
  }

  figures() {
    const [before, after] = this.graph.sides.map((side) => side.lanes);
    const bound = this.graph.overlap?.bound;
    const figure = (value, label) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, label));
    const pair = (name) => `${us(before[name])} \u2192 ${us(after[name])} \u00b5s`;
    return el(
      "div",
      { class: "tiles" },
      figure(pair("makespan"), `the call, ${this.graph.names[0]} \u2192 chosen`),
      figure(pair("exposed_ps"), "of it exposed communication"),
      bound === undefined ? null : figure(`${us(bound)} \u00b5s`, "no order of the chosen kernels takes less"),
    );
  }

  zoomed(zoom) {
    const { frame } = this;
    const middle = (frame.scrollLeft + frame.clientWidth / 2) / frame.scrollWidth;
    this.zoom = Math.min(zoom, 200);
    this.draw();
    frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
  }

  draw() {
    const { graph, zoom } = this;
    const width = LANES.width * zoom;
    const end = Math.max(1, ...graph.sides.map((side) => side.lanes.makespan));
    this.at = linearScale(0, end, LANES.left, width - LANES.right).at;
    const rows = graph.sides.map(({ lanes }) => 1 + lanes.communicators.length);
    const tall = (count) => LANES.head + count * (LANES.lane + LANES.gap);
    const floor = tall(rows[0]) + LANES.between + tall(rows[1]);
    const height = floor + LANES.foot;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "plot" }, hatch());
    root.style.width = `${100 * zoom}%`;
    root.style.maxHeight = "none";
    this.axis(root, end / 1e6, floor, width);
    this.side(root, 0, 0);
    this.side(root, 1, tall(rows[0]) + LANES.between);
    this.bound(root, tall(rows[0]) + LANES.between, floor);
    this.frame.replaceChildren(root);
  }

  axis(root, end, floor, width) {
    const { ticks, show } = linearScale(0, end / this.zoom / 2, 0, 1); // some ten of them in sight
    for (let k = 0; k * ticks[1] <= end; k++) {
      const x = this.at(k * ticks[1] * 1e6);
      root.append(svg("line", { class: "grid", x1: x, x2: x, y1: LANES.head, y2: floor }));
      root.append(svg("text", { class: "tick", x, y: floor + 15, "text-anchor": "middle" }, show(k * ticks[1])));
    }
    const middle = (LANES.left + width - LANES.right) / 2;
    const label = "predicted time [\u00b5s]";
    root.append(svg("text", { class: "label", x: middle, y: floor + 33, "text-anchor": "middle" }, label));
  }

  side(root, side, top) {
    const { lanes } = this.graph.sides[side];
    const title = `${this.graph.names[side]}: ${usUnit(lanes.makespan)}, ${usUnit(lanes.exposed_ps)} exposed`;
    root.append(svg("text", { class: `lanes-title side-${side}`, x: LANES.left, y: top + 16 }, title));
    const place = (row) => top + LANES.head + row * (LANES.lane + LANES.gap);
    const label = (text, row) => {
      const y = place(row) + LANES.lane / 2 + 4;
      root.append(svg("text", { class: "row", x: LANES.left - 8, y, "text-anchor": "end" }, text));
    };
    label("kernels", 0);
    this.spans(root, side, lanes.device, place(0), (kernel) => (kernel.kind === "loop" ? "generated" : "library"));
    this.spans(root, side, lanes.exposed, place(0), () => "exposed");
    lanes.communicators.forEach(([channel, spans], row) => {
      label(`communicator ${channel}`, row + 1);
      this.spans(root, side, spans, place(row + 1), () => "transfer");
    });
  }

  // Rectangles of spans [kernel, begin, end]; neighbours of one kind that are too narrow to see are one rectangle.
  spans(root, side, spans, top, kindOf) {
    const { kernels } = this.graph.sides[side];
    let open = null;
    const close = () => {
      if (open) root.append(this.span(side, open, top));
      open = null;
    };
    for (const [number, begin, end] of spans) {
      const kind = kindOf(kernels[number]);
      const near = open && open.kind === kind && this.at(end) - this.at(open.begin) < 1.5;
      if (!near) close();
      open = near ? { ...open, end, count: open.count + 1 } : { kind, number, begin, end, count: 1 };
    }
    close();
  }

  span(side, { kind, number, begin, end, count: many }, top) {
    const { graph, go } = this;
    const [x, width] = [this.at(begin), Math.max(0.5, this.at(end) - this.at(begin))];
    const mark = svg("rect", { x, y: top, width, height: LANES.lane, class: `span ${kind} side-${side}` });
    const kernel = graph.sides[side].kernels[number];
    const names = kernel ? shortened(kernel.ops.map((op) => graph.ops[op][0])) : "the end of all transfers";
    const what = { exposed: "waits for ", transfer: "transfer " }[kind] ?? "";
    const label = kernel ? `k${number} ${names}` : names;
    explain(mark, [
      many > 1 ? `${count(many, "kernel")} from k${number}` : what + label,
      `${usUnit(begin)} to ${usUnit(end)}: ${usUnit(end - begin)}`,
    ]);
    if (!kernel) return mark;
    mark.classList.add("pick");
    mark.addEventListener("click", () => {
      go(side, number);
      document.querySelector(".stage").scrollIntoView({ block: "start" });
    });
    if (width < 9 * `k${number}`.length || kind === "exposed") return mark;
    const place = { x: x + width / 2, y: top + LANES.lane / 2 + 4, "text-anchor": "middle" };
    return svg("g", {}, mark, svg("text", { class: `span-name ${kind}`, ...place }, `k${number}`));
  }

  bound(root, top, floor) {
    const bound = this.graph.overlap?.bound;
    if (bound === undefined) return;
    const x = this.at(bound);
    root.append(svg("line", { class: "line bound lanes-bound", x1: x, x2: x, y1: top + 4, y2: floor + 3 }));
    root.append(svg("text", { class: "tick", x: x - 6, y: top + 14, "text-anchor": "end" }, `bound ${usUnit(bound)}`));
  }
}

function hatch() {
  const stripes = svg("path", { class: "stripes", d: "M-2 2L2 -2M0 8L8 0M6 10L10 6" });
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse" }, stripes));
}

// One partition as a picture that can be moved and zoomed: kernels as boxes with their ops, bytes on the arrows.
// Only what is in sight is in the document, so that a thousand ops open at once.
"use strict";

const BOX = { ops: 32, letters: 30, line: 15, pad: 8, mapped: 2500 };
const NEAR = 0.42; // from this scale on, boxes have text
const MARKS = 8;

class Picture {
  // graph: as of graph.py; side: 0 greedy, 1 chosen; marks: op to the number of its colour; pick(side, what)
  constructor(graph, side, marks, changed, pick) {
    Object.assign(this, { graph, side, marks, changed, pick });
    this.data = graph.sides[side];
    this.view = { x: 0, y: 0, scale: 1 };
    this.shown = new Map();
    this.arrowsShown = new Map();
    this.selected = new Set();
    this.op = null;
    this.arrow = null;
    this.arrowLayer = svg("g");
    this.boxLayer = svg("g");
    this.world = svg("g", {}, this.arrowLayer, this.boxLayer);
    this.svg = svg("svg", { class: "picture", tabindex: 0, role: "group" }, arrowHead(side), this.world);
    this.map = this.makeMap();
    this.node = el("div", { class: `pane side-${side}` }, this.svg, this.map, this.buttons());
    this.times = new Map();
    for (const kernel of this.data.kernels)
      for (const op of kernel.ops) this.times.set(op, (this.times.get(op) ?? 0) + 1);
    this.listen();
  }

  buttons() {
    const button = (text, hint, act) =>
      el("button", { type: "button", title: hint, "aria-label": hint, onclick: act }, text);
    return el(
      "div",
      { class: "zoom" },
      button("+", "larger", () => this.zoom(1.35)),
      button("\u2212", "smaller", () => this.zoom(1 / 1.35)),
      button("fit", "all of it", () => this.fit()),
    );
  }

  listen() {
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, moved: false };
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || !(event.buttons & 1)) return;
      if (!from.moved && Math.hypot(event.clientX - from.x, event.clientY - from.y) < 4) return;
      if (!from.moved) this.svg.setPointerCapture(event.pointerId);
      this.view.x += event.clientX - from.x;
      this.view.y += event.clientY - from.y;
      from = { x: event.clientX, y: event.clientY, moved: true };
      this.draw();
    });
    this.svg.addEventListener("click", (event) => {
      const moved = from?.moved;
      from = null;
      if (!moved) this.choose(event.target);
    });
    this.svg.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const box = this.svg.getBoundingClientRect();
        if (event.ctrlKey || event.metaKey) {
          this.zoom(Math.exp(-event.deltaY * 0.004), event.clientX - box.left, event.clientY - box.top);
        } else {
          this.view.x -= event.shiftKey ? event.deltaY : event.deltaX;
          this.view.y -= event.shiftKey ? 0 : event.deltaY;
          this.draw();
        }
      },
      { passive: false },
    );
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [0, 80], ArrowDown: [0, -80], ArrowLeft: [80, 0], ArrowRight: [-80, 0] }[event.key];
      if (step) {
        this.view.x += step[0];
        this.view.y += step[1];
        this.draw();
      } else if (event.key === "+") this.zoom(1.35);
      else if (event.key === "-") this.zoom(1 / 1.35);
      else return;
      event.preventDefault();
    });
    this.map.addEventListener("click", (event) => {
      const place = this.map.getBoundingClientRect();
      const at = (part, size, room) => room / 2 - part * size * this.view.scale;
      this.view.x = at((event.clientX - place.left) / place.width, this.data.size[0], this.width);
      this.view.y = at((event.clientY - place.top) / place.height, this.data.size[1], this.height);
      this.draw();
    });
  }

  choose(target) {
    const node = target.closest("[data-kernel], [data-arrow]");
    if (!node) this.pick(this.side, null);
    else if (node.dataset.arrow) this.pick(this.side, { arrow: Number(node.dataset.arrow) });
    else
      this.pick(this.side, {
        kernel: Number(node.dataset.kernel),
        op: target.dataset.op ? Number(target.dataset.op) : null,
      });
  }

  // Call when the pane is in the page or has another size.
  measure() {
    [this.width, this.height] = [this.svg.clientWidth || 600, this.svg.clientHeight || 500];
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(2.5, Math.max(0.01, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
    this.draw();
  }

  fit() {
    this.frame(0, 0, this.data.size[0], this.data.size[1], 1);
  }

  // Show a part of the world in the middle, no larger than natural size.
  frame(left, top, width, height, largest = 1, smallest = 0.01) {
    const scale = Math.max(smallest, Math.min(largest, (this.width - 20) / width, (this.height - 40) / height));
    const y = height * scale > this.height - 40 ? 24 - top * scale : (this.height - height * scale) / 2 - top * scale;
    this.view = { scale, x: (this.width - width * scale) / 2 - left * scale, y };
    this.draw();
  }

  // The beginning, as large as it can be read.
  top() {
    const [first] = this.data.kernels;
    const middle = first ? first.box[0] + first.box[2] / 2 : 0;
    this.view = { scale: 0.9, x: this.width / 2 - 0.9 * middle, y: 24 - 0.9 * (first ? first.box[1] : 0) };
    this.draw();
  }

  // Bring kernels into sight, at a size at which they can be read.
  show(kernels, smallest = 0.5) {
    if (!kernels.length) return;
    const boxes = kernels.map((k) => this.data.kernels[k].box);
    const left = Math.min(...boxes.map((b) => b[0])),
      top = Math.min(...boxes.map((b) => b[1]));
    const right = Math.max(...boxes.map((b) => b[0] + b[2])),
      bottom = Math.max(...boxes.map((b) => b[1] + b[3]));
    const far = right - left > (this.width - 20) / smallest;
    if (far) this.frame(boxes[0][0] - 20, top - 30, boxes[0][2] + 40, bottom - top + 60, 1, smallest);
    else this.frame(left - 20, top - 30, right - left + 40, bottom - top + 60, 1, smallest);
  }

  select(kernels, op = null, arrow = null) {
    this.selected = new Set(kernels);
    this.op = op;
    this.arrow = arrow;
    for (const node of [...this.shown.values(), ...this.arrowsShown.values()]) node.remove();
    this.shown.clear();
    this.arrowsShown.clear();
    this.draw();
  }

  draw() {
    const { x, y, scale } = this.view;
    this.world.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    const near = scale >= NEAR;
    if (near !== this.near) {
      this.near = near;
      this.svg.classList.toggle("distant", !near);
      for (const node of [...this.shown.values(), ...this.arrowsShown.values()]) node.remove();
      this.shown.clear();
      this.arrowsShown.clear();
    }
    const sight = { left: -x / scale - 80, top: -y / scale - 80 };
    sight.right = sight.left + this.width / scale + 160;
    sight.bottom = sight.top + this.height / scale + 160;
    keep(
      this.shown,
      this.data.kernels,
      this.boxLayer,
      (kernel) => overlaps(kernel.box, sight),
      (k) => this.box(k),
    );
    keep(
      this.arrowsShown,
      this.data.arrows,
      this.arrowLayer,
      (arrow) => this.passes(arrow, sight),
      (k) => this.drawArrow(k),
    );
    this.drawMap();
  }

  passes(arrow, sight) {
    const [from, to] = [this.data.kernels[arrow[0]].box, this.data.kernels[arrow[1]].box];
    const xs = [from[0] + from[2] / 2, to[0] + to[2] / 2, ...arrow[5].filter((_, k) => k % 2 === 0)];
    return (
      from[1] + from[3] <= sight.bottom &&
      to[1] >= sight.top &&
      Math.min(...xs) <= sight.right &&
      Math.max(...xs) >= sight.left
    );
  }

  box(number) {
    const kernel = this.data.kernels[number];
    const [left, top, width, height] = kernel.box;
    const classes = ["kernel", kernel.kind === "loop" ? "loop" : "library"];
    if (this.changed.has(number)) classes.push("changed");
    if (this.selected.has(number)) classes.push("selected");
    const node = svg(
      "g",
      { class: classes.join(" "), "data-kernel": number, transform: `translate(${left} ${top})` },
      svg("rect", { class: "box", width, height, rx: kernel.kind === "loop" ? 6 : 0 }),
    );
    if (this.near) this.write(node, kernel, number, height);
    return node;
  }

  write(node, kernel, number, height) {
    const at = (line) => BOX.pad + (line + 0.75) * BOX.line;
    node.append(svg("text", { class: "head", x: BOX.pad, y: at(0) }, `k${number}  ${usUnit(kernel.cost)}`));
    const names = kernel.ops.length > BOX.ops ? kernel.ops.slice(0, BOX.ops - 1) : kernel.ops;
    // What was asked for is shown, if it is not among the first.
    if (kernel.ops.includes(this.op) && !names.includes(this.op)) names[names.length - 1] = this.op;
    names.forEach((op, k) => {
      const name = this.graph.ops[op][0];
      const cut = name.length > BOX.letters ? `${name.slice(0, BOX.letters - 1)}\u2026` : name;
      const mark = this.marks.get(op);
      if (mark !== undefined) {
        node.append(
          svg("rect", { class: `mark mark-${mark % MARKS}`, x: BOX.pad, y: at(k + 1) - 8, width: 8, height: 8 }),
        );
      }
      const copy = this.times.get(op) > 1 ? ` \u00d7${this.times.get(op)}` : "";
      node.append(
        svg(
          "text",
          { class: op === this.op ? "op here" : "op", "data-op": op, x: BOX.pad + 13, y: at(k + 1) },
          cut + copy,
        ),
      );
    });
    if (kernel.ops.length > BOX.ops) {
      const more = `and ${kernel.ops.length - BOX.ops + 1} more`;
      node.append(svg("text", { class: "dim", x: BOX.pad + 13, y: at(BOX.ops) }, more));
    }
    const ends = [kernel.in ? `in ${bytes(kernel.in)}` : "", kernel.out ? `out ${bytes(kernel.out)}` : ""];
    const text = ends.filter(Boolean).join("  ");
    node.append(svg("text", { class: "dim", x: BOX.pad, y: height - BOX.pad - 2 }, text));
  }

  drawArrow(number) {
    const [source, target, size, buffers, , bends] = this.data.arrows[number];
    const [from, to] = [this.data.kernels[source].box, this.data.kernels[target].box];
    const points = [[from[0] + from[2] / 2, from[1] + from[3]]];
    for (let k = 0; k < bends.length; k += 2) points.push([bends[k], bends[k + 1]]);
    points.push([to[0] + to[2] / 2, to[1] - 3]);
    let path = `M${points[0][0]} ${points[0][1]}`;
    for (let k = 1; k < points.length; k++) {
      const [x0, y0] = points[k - 1],
        [x1, y1] = points[k];
      path += `C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;
    }
    const touched = this.selected.has(source) || this.selected.has(target) || this.arrow === number;
    const far = !touched && points.length === 2 && to[1] - from[1] - from[3] > 1500;
    const classes = ["arrow", buffers.length ? "" : "order", touched ? "near" : "", far ? "far" : ""]
      .filter(Boolean)
      .join(" ");
    const node = svg(
      "g",
      { class: classes, "data-arrow": number },
      svg("path", { class: "line", d: path, "marker-end": `url(#head-${this.side})` }),
      svg("path", { class: "hit", d: path }),
    );
    if (this.near && buffers.length) {
      // In the middle of a short arrow, where arrows that meet are still apart; of a long one, near its end; of one
      // that goes round boxes, at its last bend, which is between boxes.
      const [x0, y0] = points.at(-2),
        [x1, y1] = points.at(-1);
      const long = y1 - y0 > 160;
      const middle = long ? [x1, y1 - 18] : [(x0 + x1) / 2, (y0 + y1) / 2];
      const [x, y] = points.length > 2 && !long ? [x0, y0] : middle;
      const place = { x, y: y + 4, "text-anchor": "middle" };
      node.append(svg("text", { class: "bytes", ...place }, bytes(size)));
    }
    return node;
  }

  // A small picture of all, in its own proportions: every box as a mark, and what is in sight.
  makeMap() {
    const [width, height] = this.data.size.map((size) => Math.max(1, size));
    const small = height < BOX.mapped;
    const marks = { all: "", changed: "" };
    this.data.kernels.forEach(({ box: [left, top, wide, high] }, number) => {
      const least = Math.max(wide, width / 14),
        deep = Math.max(high, height / 500);
      marks[this.changed.has(number) ? "changed" : "all"] += `M${left} ${top}h${least}v${deep}h${-least}z`;
    });
    this.sight = svg("rect", { class: "sight" });
    return svg(
      "svg",
      {
        class: small ? "map none" : "map",
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: "none",
        "aria-hidden": true,
      },
      svg("rect", { width, height, fill: "transparent" }),
      svg("path", { class: "all", d: marks.all }),
      svg("path", { class: "changed", d: marks.changed }),
      this.sight,
    );
  }

  drawMap() {
    const { x, y, scale } = this.view;
    const [width, height] = this.data.size;
    const left = Math.max(0, -x / scale),
      top = Math.max(0, -y / scale);
    const right = Math.min(width, (this.width - x) / scale),
      bottom = Math.min(height, (this.height - y) / scale);
    const tall = Math.max(bottom - top, height / 120);
    for (const [name, value] of Object.entries({
      x: left,
      y: top,
      width: Math.max(right - left, width / 14),
      height: tall,
    })) {
      this.sight.setAttribute(name, value);
    }
  }
}

function arrowHead(side) {
  return svg(
    "defs",
    {},
    svg(
      "marker",
      {
        id: `head-${side}`,
        viewBox: "0 0 8 8",
        refX: 5,
        refY: 4,
        markerWidth: 9,
        markerHeight: 9,
        markerUnits: "userSpaceOnUse",
        orient: "auto",
      },
      svg("path", { class: "tip", d: "M0 0.5L8 4L0 7.5z" }),
    ),
  );
}

function overlaps([left, top, width, height], sight) {
  return left <= sight.right && left + width >= sight.left && top <= sight.bottom && top + height >= sight.top;
}

// Have in a layer exactly the items that are in sight.
function keep(shown, items, layer, inSight, make) {
  items.forEach((item, number) => {
    const wanted = inSight(item);
    const there = shown.get(number);
    if (wanted && !there) {
      const node = make(number);
      shown.set(number, node);
      layer.append(node);
    } else if (!wanted && there) {
      there.remove();
      shown.delete(number);
    }
  });
}

// Plots as SVG: axes, points and steps.
"use strict";

const PLOT = { width: 460, height: 300, left: 58, right: 16, top: 12, bottom: 44 };

function linearScale(low, high, from, to) {
  const span = high - low || 1;
  const raw = span / 5;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((candidate) => candidate >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return { at: (value) => from + ((value - low) / span) * (to - from), ticks, show: (tick) => fixed(tick, digits) };
}

function logScale(low, high, from, to) {
  const [first, last] = [Math.log10(low), Math.log10(high)];
  const span = last - first || 1;
  const factors = span > 2.2 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(first); power <= Math.ceil(last); power++) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  const show = (tick) => (tick >= 1 ? grouped.format(tick) : String(Number(tick.toPrecision(2))));
  return { at: (value) => from + ((Math.log10(value) - first) / span) * (to - from), ticks, show };
}

// A little room around values, for an axis of a kind.
function domain(kind, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (kind === "log") return [low / 1.3, high * 1.3];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}

// Axes with labels; x and y are {kind, domain, label}. Returns the svg and the scales.
function frame(x, y, size = PLOT) {
  const make = (axis, from, to) => (axis.kind === "log" ? logScale : linearScale)(...axis.domain, from, to);
  const scaleX = make(x, size.left, size.width - size.right);
  const scaleY = make(y, size.height - size.bottom, size.top);
  const root = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", class: "plot" });
  const floor = size.height - size.bottom;
  for (const tick of scaleX.ticks) {
    const at = scaleX.at(tick);
    root.append(svg("line", { class: "grid", x1: at, x2: at, y1: size.top, y2: floor }));
    root.append(svg("text", { class: "tick", x: at, y: floor + 15, "text-anchor": "middle" }, scaleX.show(tick)));
  }
  for (const tick of scaleY.ticks) {
    const at = scaleY.at(tick);
    root.append(svg("line", { class: "grid", x1: size.left, x2: size.width - size.right, y1: at, y2: at }));
    root.append(svg("text", { class: "tick", x: size.left - 6, y: at + 4, "text-anchor": "end" }, scaleY.show(tick)));
  }
  root.append(svg("line", { class: "axis", x1: size.left, x2: size.width - size.right, y1: floor, y2: floor }));
  const middle = (size.left + size.width - size.right) / 2;
  root.append(svg("text", { class: "label", x: middle, y: size.height - 8, "text-anchor": "middle" }, x.label));
  const turned = `translate(13 ${(size.top + floor) / 2}) rotate(-90)`;
  root.append(svg("text", { class: "label", transform: turned, "text-anchor": "middle" }, y.label));
  return { root, x: scaleX, y: scaleY, size };
}

// points: {x, y, class, lines, open}
function drawPoints(plot, points, radius = 4) {
  for (const point of points) {
    const mark = svg("circle", {
      cx: plot.x.at(point.x),
      cy: plot.y.at(point.y),
      r: radius,
      class: `point ${point.class ?? ""}`,
    });
    if (point.lines) explain(mark, point.lines);
    if (point.open) {
      mark.classList.add("pick");
      mark.addEventListener("click", point.open);
    }
    plot.root.append(mark);
  }
}

// A line through points; as steps, a value holds until the next one.
function drawLine(plot, points, name, steps = false) {
  const at = points.map(([x, y]) => [plot.x.at(x), plot.y.at(y)]);
  const path = at.map(([x, y], k) => (k === 0 ? `M${x} ${y}` : steps ? `H${x}V${y}` : `L${x} ${y}`)).join("");
  const line = svg("path", { class: `line ${name}`, d: path });
  plot.root.append(line);
  return line;
}

function card(title, hint, legend, content) {
  const keys = legend.map(([name, label]) => el("span", { class: "key" }, el("i", { class: name }), label));
  return el(
    "figure",
    { class: "card" },
    el("figcaption", {}, el("strong", {}, title), el("div", { class: "hint" }, hint)),
    keys.length ? el("div", { class: "legend" }, keys) : null,
    content,
  );
}

function emptyCard(title, hint, reason) {
  return card(title, hint, [], el("p", { class: "empty" }, reason));
}

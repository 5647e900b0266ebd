// The page's front: figures, plots and the table of graphs. All of them show the graphs that the filter leaves.
"use strict";

const KINDS = ["inference", "forward", "backward", "instance"];
const kindClass = (entry) => `kind-${KINDS.indexOf(entry.kind)}`;
const solved = (entry) => entry.outcome === "ok" && entry.objective > 0 && entry.greedy > 0;
const saved = (entry) => (solved(entry) ? (entry.greedy - entry.objective) / entry.greedy : null);
const memoryChange = (entry) => (solved(entry) && entry.greedy_peak ? entry.peak / entry.greedy_peak - 1 : null);
const openGraph = (entry) => () => {
  location.hash = `#graph/${encodeURIComponent(entry.graph)}`;
};

function tooltipOf(entry) {
  return [
    entry.graph,
    `greedy ${usUnit(entry.greedy)}, chosen ${usUnit(entry.objective)}`,
    `saved: ${savedText(saved(entry))}, gap ${percent(entry.gap)}`,
    `${count(entry.ops, "op")}, solved in ${seconds(entry.solve_s)} s`,
  ];
}

function kindLegend(entries) {
  return KINDS.map((kind, k) => [`kind-${k}`, kind]).filter(([, kind]) => entries.some((e) => e.kind === kind));
}

function tile(value, label, hint) {
  return el("div", { class: "tile", title: hint }, el("b", {}, value), el("span", {}, label));
}

function tiles(entries) {
  const done = entries.filter(solved);
  const proven = done.filter((entry) => entry.proven);
  const better = done.filter((entry) => entry.objective < entry.greedy);
  const ratio = geomean(done.map((entry) => entry.greedy / entry.objective));
  const memory = geomean(done.filter((e) => e.greedy_peak && e.peak).map((e) => e.peak / e.greedy_peak));
  const dearer = done.filter((entry) => entry.objective > entry.greedy).length;
  const ties = done.length - better.length - dearer;
  const best = done.reduce((a, b) => (a && saved(a) >= saved(b) ? a : b), null);
  const widest = done.reduce((a, b) => (a && a.gap >= b.gap ? a : b), null);
  return el(
    "section",
    { class: "tiles" },
    tile(`${done.length} / ${entries.length}`, "graphs solved", "Graphs with a checked schedule, of all shown"),
    tile(`${proven.length}`, "proven optimal", "Under the stated model of cost and legality"),
    tile(
      ratio === null ? "\u2013" : `${fixed(ratio, 4)}\u00d7`,
      "geometric mean of greedy / chosen",
      "Predicted time of greedy fusion's schedule over that of the chosen one, equal graphs included",
    ),
    tile(
      `${better.length}`,
      `better than greedy; ${ties} tie${dearer ? `, ${dearer} dearer under a cap` : ""}`,
      "Without a cap on memory, which greedy does not know, a chosen schedule is never worse",
    ),
    tile(best === null ? "\u2013" : savedText(saved(best)), best === null ? "most saved" : `most saved: ${best.graph}`),
    tile(
      widest === null ? "\u2013" : percent(widest.gap),
      widest === null ? "largest gap" : widest.gap > 0 ? `largest gap: ${widest.graph}` : "largest gap",
      "How much cheaper an unknown schedule may be at most",
    ),
    tile(
      memory === null ? "\u2013" : `${fixed(memory, 4)}\u00d7`,
      "geometric mean of peak memory",
      "Peak of live bytes, chosen over greedy",
    ),
    ...otherTiles(done),
    tile(seconds(done.reduce((sum, entry) => sum + (entry.solve_s ?? 0), 0)), "seconds of solving"),
  );
}

// Other solvers (Inductor's own fusion, say) against the chosen schedules, on the graphs that both have.
function otherTiles(done) {
  const names = [...new Set(done.flatMap((entry) => Object.keys(entry.others)))].sort();
  const agreements = done.map((entry) => entry.agreement).filter((share) => share !== null);
  const mean = agreements.reduce((sum, share) => sum + share, 0) / agreements.length;
  return [
    ...names.map((name) => {
      const both = done.filter((entry) => entry.others[name]);
      const ratio = geomean(both.map((entry) => entry.others[name] / entry.objective));
      return tile(
        `${fixed(ratio, 4)}\u00d7`,
        `geometric mean of ${name} / chosen (${count(both.length, "graph")})`,
        `Predicted time of ${name}'s schedule over that of the chosen one`,
      );
    }),
    agreements.length
      ? tile(
          percent(mean, 1),
          `mean agreement of greedy with Inductor (${count(agreements.length, "graph")})`,
          "Share of pairs of ops on which they agree whether to fuse",
        )
      : null,
  ];
}

function scatterCard(entries) {
  const title = "Greedy against chosen",
    hint = "predicted time; below the line, greedy loses";
  const done = entries.filter(solved);
  if (!done.length) return emptyCard(title, hint, "No graph is solved.");
  const ends = domain(
    "log",
    done.flatMap((entry) => [entry.greedy / 1e6, entry.objective / 1e6]),
  );
  const plot = frame(
    { kind: "log", domain: ends, label: "greedy [\u00b5s]" },
    { kind: "log", domain: ends, label: "chosen [\u00b5s]" },
  );
  drawLine(
    plot,
    [
      [ends[0], ends[0]],
      [ends[1], ends[1]],
    ],
    "diagonal",
  );
  drawPoints(
    plot,
    done.map((entry) => ({
      x: entry.greedy / 1e6,
      y: entry.objective / 1e6,
      class: kindClass(entry),
      lines: tooltipOf(entry),
      open: openGraph(entry),
    })),
  );
  return card(title, hint, kindLegend(done), plot.root);
}

function priceCard(entries, state, redraw) {
  const title = "The price of greediness",
    hint = "time that greedy's schedule wastes, of its own; bar: median";
  const done = entries.filter(solved);
  if (!done.length) return emptyCard(title, hint, "No graph is solved.");
  const groups = new Map();
  for (const entry of done) {
    const key = state.byModel ? entry.model : entry.kind;
    groups.set(key, [...(groups.get(key) ?? []), entry]);
  }
  const names = state.byModel
    ? [...groups.keys()].sort((a, b) => Math.max(...groups.get(b).map(saved)) - Math.max(...groups.get(a).map(saved)))
    : KINDS.filter((kind) => groups.has(kind));
  const line = state.byModel ? 17 : 68;
  const size = { ...PLOT, left: 118, height: 56 + line * names.length };
  const most = Math.max(0.01, ...done.map(saved));
  const least = Math.min(-0.02 * most, ...done.map((entry) => 1.05 * saved(entry)));
  const plot = frame(
    { kind: "linear", domain: [100 * least, 105 * most], label: "saved [% of greedy's predicted time]" },
    { kind: "linear", domain: [0, 1], label: "" },
    size,
  );
  for (const node of plot.root.querySelectorAll(".tick[text-anchor=end], .grid[x1='118']")) node.remove();
  names.forEach((name, row) => drawGroup(plot, name, groups.get(name), row, line, !state.byModel));
  const button = el(
    "button",
    {
      type: "button",
      class: "small",
      onclick: () => {
        state.byModel = !state.byModel;
        redraw();
      },
    },
    state.byModel ? "by kind of graph" : "by model",
  );
  return card(title, hint, kindLegend(done), el("div", {}, plot.root, button));
}

function drawGroup(plot, name, members, row, line, wide) {
  const middle = plot.size.top + line * (row + 0.5);
  const label = wide ? `${name} (${members.length})` : name.length > 18 ? `${name.slice(0, 17)}\u2026` : name;
  plot.root.append(svg("text", { class: "row", x: plot.size.left - 8, y: middle + 4, "text-anchor": "end" }, label));
  const places = new Map();
  for (const entry of [...members].sort((a, b) => saved(a) - saved(b))) {
    const at = plot.x.at(100 * saved(entry));
    const slot = Math.round(at / 6);
    const height = places.get(slot) ?? 0;
    places.set(slot, height + 1);
    const shift = wide ? Math.min(25, Math.ceil(height / 2) * 4.5) * (height % 2 ? -1 : 1) : 0;
    const mark = svg("circle", {
      cx: at,
      cy: middle + shift,
      r: wide ? 3.5 : 4,
      class: `point pick ${kindClass(entry)}`,
    });
    mark.addEventListener("click", openGraph(entry));
    plot.root.append(explain(mark, tooltipOf(entry)));
  }
  if (wide) {
    const at = plot.x.at(100 * median(members.map(saved)));
    plot.root.append(svg("line", { class: "median", x1: at, x2: at, y1: middle - 26, y2: middle + 26 }));
  }
}

// The first moment at which a gap was reached; null if never.
function reached(entry, gap) {
  for (const [second, objective, bound] of entry.progress ?? []) {
    if (objective - bound <= gap * objective) return Math.max(second, 0.01);
  }
  return solved(entry) && entry.gap <= gap ? Math.max(entry.solve_s ?? 0.01, 0.01) : null;
}

function cactusCard(entries) {
  const title = "Solved against time",
    hint = "graphs within a gap after so many seconds";
  const done = entries.filter(solved);
  if (!done.length) return emptyCard(title, hint, "No graph is solved.");
  const lines = [
    [0, "proven", "proven optimal"],
    [0.001, "tight", "gap \u2264 0.1%"],
    [0.01, "loose", "gap \u2264 1%"],
  ];
  const times = lines.map(([gap]) =>
    done
      .map((e) => reached(e, gap))
      .filter((t) => t !== null)
      .sort((a, b) => a - b),
  );
  const all = times.flat();
  if (!all.length) return emptyCard(title, hint, "No graph is within 1% of its bound.");
  const end = Math.max(...all, ...done.map((entry) => entry.solve_s ?? 0)) * 1.2;
  const plot = frame(
    { kind: "log", domain: [Math.min(...all) / 1.3, end], label: "wall time of the solve [s]" },
    { kind: "linear", domain: [0, entries.length * 1.04], label: "graphs" },
  );
  const floor = Math.min(...all) / 1.3;
  drawLine(
    plot,
    [
      [floor, entries.length],
      [end, entries.length],
    ],
    "diagonal",
  );
  lines.forEach(([, name], k) => {
    const steps = times[k].map((time, number) => [time, number + 1]);
    if (steps.length) drawLine(plot, [[floor, 0], ...steps, [end, steps.length]], name, true);
  });
  const legend = lines.map(([, name, label], k) => [name, `${label}: ${times[k].length}`]);
  return card(title, hint, [...legend, ["all", `all: ${entries.length}`]], plot.root);
}

function gapCard(entries) {
  const title = "Gap over time",
    hint = "objective against proven bound; bold: median of the graphs";
  const told = entries.filter((entry) => solved(entry) && entry.progress?.length);
  if (!told.length) return emptyCard(title, hint, "The plans of this run tell nothing of how their solves went.");
  const ends = told.flatMap((entry) => entry.progress.map(([second]) => Math.max(second, 0.01)));
  const [start, end] = [Math.min(...ends), Math.max(...ends) * 1.1];
  const gapOf = ([, objective, bound]) => (100 * (objective - bound)) / objective;
  const most = Math.max(1, ...told.flatMap((entry) => entry.progress.map(gapOf)));
  const plot = frame(
    { kind: "log", domain: [start, end], label: "wall time of the solve [s]" },
    { kind: "linear", domain: [0, Math.min(100, most * 1.05)], label: "gap [%]" },
  );
  for (const entry of told) {
    const points = entry.progress.map((record) => [Math.max(record[0], 0.01), Math.min(100, gapOf(record))]);
    const line = drawLine(plot, [...points, [end, points.at(-1)[1]]], `thin ${kindClass(entry)}`, true);
    explain(line, tooltipOf(entry)).addEventListener("click", openGraph(entry));
  }
  const middle = [];
  for (let k = 0; k <= 60; k++) {
    const time = start * (end / start) ** (k / 60);
    const gaps = told.map((entry) => {
      const known = entry.progress.filter(([second]) => Math.max(second, 0.01) <= time).at(-1);
      return known ? gapOf(known) : 100;
    });
    middle.push([time, Math.min(median(gaps), Math.min(100, most * 1.05))]);
  }
  drawLine(plot, middle, "bold", true);
  return card(title, hint, kindLegend(told), plot.root);
}

function memoryCard(entries) {
  const title = "Time against memory",
    hint = "chosen against greedy; to the lower right, better in both";
  const done = entries.filter((entry) => memoryChange(entry) !== null);
  if (!done.length) return emptyCard(title, hint, "No peaks of live memory are known.");
  const plot = frame(
    { kind: "linear", domain: domain("linear", [0, 0.5, ...done.map((e) => 100 * saved(e))]), label: "time saved [%]" },
    {
      kind: "linear",
      domain: domain("linear", [-0.5, 0.5, ...done.map((e) => 100 * memoryChange(e))]),
      label: "change of peak memory [%]",
    },
  );
  const floor = plot.y.at(0);
  plot.root.append(svg("line", { class: "axis", x1: plot.size.left, x2: plot.size.width - 16, y1: floor, y2: floor }));
  drawPoints(
    plot,
    done.map((entry) => ({
      x: 100 * saved(entry),
      y: 100 * memoryChange(entry),
      class: kindClass(entry),
      open: openGraph(entry),
      lines: [...tooltipOf(entry), `peak ${bytes(entry.greedy_peak)}, chosen ${bytes(entry.peak)}`],
    })),
  );
  return card(title, hint, kindLegend(done), plot.root);
}

function sizeCard(entries) {
  const title = "Solving time by size",
    hint = "ops of the graph against wall time of its solve";
  const done = entries.filter((entry) => solved(entry) && entry.solve_s > 0 && entry.ops > 0);
  if (!done.length) return emptyCard(title, hint, "No solving times are known.");
  const plot = frame(
    {
      kind: "log",
      domain: domain(
        "log",
        done.map((entry) => entry.ops),
      ),
      label: "ops",
    },
    {
      kind: "log",
      domain: domain(
        "log",
        done.map((entry) => entry.solve_s),
      ),
      label: "seconds",
    },
  );
  drawPoints(
    plot,
    done.map((entry) => ({
      x: entry.ops,
      y: entry.solve_s,
      class: entry.proven ? "was-proven" : "not-proven",
      lines: tooltipOf(entry),
      open: openGraph(entry),
    })),
  );
  return card(
    title,
    hint,
    [
      ["was-proven", "proven optimal"],
      ["not-proven", "not proven"],
    ],
    plot.root,
  );
}

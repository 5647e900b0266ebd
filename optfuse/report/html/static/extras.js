// What was measured on a device, and sweeps of memory caps, where the page was given them.
"use strict";

function extras(report) {
  return [report.bench ? measured(report.bench) : null, report.pareto?.length ? sweeps(report.pareto) : null];
}

function measured(bench) {
  const where = [bench.device, bench.torch ? `torch ${bench.torch}` : ""].filter(Boolean).join(", ");
  const columns = [
    { key: "row", label: "model", value: (row) => row.row },
    ...[...new Set(bench.rows.flatMap((row) => Object.keys(row.times_ms)))].map((system) => ({
      key: `time-${system}`,
      label: `${system} ms`,
      number: true,
      hint: "median of many runs",
      value: (row) => row.times_ms[system] ?? null,
      cell: (row) => (row.times_ms[system] === undefined ? "" : fixed(row.times_ms[system], 3)),
    })),
    { key: "speedup", label: "best peer / best of ours", number: true, value: (row) => row.speedup, cell: ratioCell },
    {
      key: "memory",
      label: "peak memory, Inductor / ours",
      number: true,
      value: (row) => row.memory_ratio,
      cell: (row) => times(row.memory_ratio),
    },
    {
      key: "compile",
      label: "cold compile, Inductor / ours",
      number: true,
      value: (row) => row.compile_ratio,
      cell: (row) => times(row.compile_ratio),
    },
    {
      key: "failed",
      label: "not right",
      value: (row) => [...row.wrong, ...Object.keys(row.failed)].join(", ") || null,
      cell: (row) =>
        el(
          "span",
          { class: "bad", title: Object.values(row.failed).join("; ") },
          [...row.wrong, ...Object.keys(row.failed)].join(", "),
        ),
    },
  ].filter((column) => bench.rows.some((row) => column.value(row) !== null));
  return el(
    "section",
    {},
    el("h2", {}, "Measured"),
    el(
      "p",
      { class: "hint" },
      `By optfuse bench on ${where || "a device"}; unlike all else on this page, no prediction.`,
    ),
    el("div", { class: "plots" }, predictionCard(bench), speedupCard(bench)),
    sortedTable(columns, bench.rows, { class: "bench", sort: "row" }).node,
  );
}

const times = (ratio) => (ratio === null ? "" : `${fixed(ratio, 2)}\u00d7`);

function ratioCell(row) {
  return row.speedup === null ? "" : el("span", { class: row.speedup >= 1 ? "good" : "bad" }, times(row.speedup));
}

function predictionCard(bench) {
  const title = "Predicted against measured",
    hint = "time of each kernel on the device";
  const kernels = bench.kernels.filter((kernel) => kernel.predicted_us > 0 && kernel.measured_us > 0);
  if (!kernels.length) return emptyCard(title, hint, "The bench has no times of single kernels.");
  const ends = domain(
    "log",
    kernels.flatMap((kernel) => [kernel.predicted_us, kernel.measured_us]),
  );
  const plot = frame(
    { kind: "log", domain: ends, label: "predicted [\u00b5s]" },
    { kind: "log", domain: ends, label: "measured [\u00b5s]" },
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
    kernels.map((kernel) => ({
      x: kernel.predicted_us,
      y: kernel.measured_us,
      class: kernel.kind === "triton" ? "part-memory" : "part-library",
      lines: [
        `${kernel.row}: ${kernel.name}`,
        `predicted ${fixed(kernel.predicted_us, 1)} \u00b5s, measured ` + `${fixed(kernel.measured_us, 1)} \u00b5s`,
        `${bytes(kernel.read_bytes + kernel.write_bytes)} moved, ` +
          `${percent(kernel.peak_share, 0)} of peak bandwidth`,
      ],
    })),
    3,
  );
  const legend = [
    ["triton", "part-memory", "generated"],
    ["library", "part-library", "library"],
  ].map(([kind, name, label]) => {
    const { kernels: many, spearman, median_relative_error: error } = bench.prediction[kind];
    const rank = spearman === null ? "" : `, rank correlation ${fixed(spearman, 3)}`;
    return [name, `${label}: ${many}${rank}${error === null ? "" : `, median error ${percent(error, 0)}`}`];
  });
  return card(title, hint, legend, plot.root);
}

function speedupCard(bench) {
  const title = "Speed against the best peer",
    hint = "of eager and Inductor, with and without CUDA graphs; 1 is level";
  const rows = bench.rows.filter((row) => row.speedup > 0).sort((a, b) => b.speedup - a.speedup);
  if (!rows.length) return emptyCard(title, hint, "No row has both a peer and ours.");
  const size = { ...PLOT, left: 150, height: 56 + 18 * rows.length };
  const plot = frame(
    { kind: "log", domain: domain("log", [0.9, 1.1, ...rows.map((row) => row.speedup)]), label: "peer / ours" },
    { kind: "linear", domain: [0, 1], label: "" },
    size,
  );
  for (const node of plot.root.querySelectorAll(".tick[text-anchor=end], .grid[x1='150']")) node.remove();
  const level = plot.x.at(1);
  plot.root.append(svg("line", { class: "axis", x1: level, x2: level, y1: size.top, y2: size.height - size.bottom }));
  rows.forEach((row, number) => {
    const y = size.top + 18 * (number + 0.5),
      at = plot.x.at(row.speedup);
    plot.root.append(
      svg(
        "text",
        { class: "row", x: size.left - 8, y: y + 4, "text-anchor": "end" },
        row.row.length > 24 ? `${row.row.slice(0, 23)}\u2026` : row.row,
      ),
      svg("line", { class: "line", x1: level, x2: at, y1: y, y2: y }),
      explain(svg("circle", { class: `point ${row.speedup >= 1 ? "side-1" : "side-0"}`, cx: at, cy: y, r: 4.5 }), [
        row.row,
        times(row.speedup),
      ]),
    );
  });
  const mean = bench.geomean === null ? [] : [["all", `geometric mean ${times(bench.geomean)}`]];
  return card(title, hint, mean, plot.root);
}

function sweeps(pareto) {
  return el(
    "section",
    {},
    el("h2", {}, "Time within a cap on memory"),
    el(
      "div",
      { class: "plots" },
      pareto.map(({ name, caps }) => sweepCard(name, caps)),
    ),
  );
}

function sweepCard(name, caps) {
  const hint = "cheapest schedule found within each cap, and a proven bound";
  const met = caps.filter((cap) => cap.objective !== null).map((cap) => [cap.cap_bytes / 2 ** 20, cap.objective / 1e6]);
  const below = caps.map((cap) => [cap.cap_bytes / 2 ** 20, cap.bound / 1e6]);
  if (!met.length) return emptyCard(name, hint, "No schedule was found within any cap.");
  const floor = caps[0].floor_bytes / 2 ** 20;
  const plot = frame(
    { kind: "linear", domain: domain("linear", [floor, ...below.map(([x]) => x)]), label: "cap on live memory [MiB]" },
    {
      kind: "linear",
      domain: domain(
        "linear",
        [...met, ...below].map(([, y]) => y),
      ),
      label: "predicted time [\u00b5s]",
    },
  );
  const at = plot.x.at(floor);
  plot.root.append(
    svg("line", { class: "line diagonal", x1: at, x2: at, y1: PLOT.top, y2: PLOT.height - PLOT.bottom }),
  );
  const rising = (points) => [...points].sort((a, b) => a[0] - b[0]);
  drawLine(plot, rising(below), "bound", true);
  drawLine(plot, rising(met), "side-1", true);
  drawPoints(
    plot,
    met.map(([x, y]) => ({ x, y, class: "side-1", lines: [`${fixed(y, 1)} \u00b5s`, `within ${fixed(x, 1)} MiB`] })),
  );
  return card(
    name,
    hint,
    [
      ["side-1", "cheapest found"],
      ["bound", "lower bound"],
      ["all", "no schedule needs less"],
    ],
    plot.root,
  );
}

// The overview: filter, tiles, plots, table, and what failed.
"use strict";

const STATES = [
  ["all", "all graphs", () => true],
  ["better", "better than greedy", (entry) => solved(entry) && entry.objective < entry.greedy],
  ["tie", "as good as greedy", (entry) => solved(entry) && entry.objective === entry.greedy],
  ["dearer", "dearer than greedy (under a cap)", (entry) => solved(entry) && entry.objective > entry.greedy],
  ["proven", "proven optimal", (entry) => entry.proven],
  ["open", "not proven", (entry) => solved(entry) && !entry.proven],
  ["failed", "not solved", (entry) => !solved(entry)],
];

function overview(report) {
  const filter = { text: "", kind: "all", state: "all", byModel: false };
  const figures = el("div");
  const plots = el("section", { class: "plots" });
  const table = graphTable(report);
  const shown = el("span", { class: "shown", "aria-live": "polite" });

  function update() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const accepts = STATES.find(([name]) => name === filter.state)[2];
    const entries = report.entries.filter(
      (entry) =>
        words.every((word) => entry.graph.toLowerCase().includes(word)) &&
        (filter.kind === "all" || entry.kind === filter.kind) &&
        accepts(entry),
    );
    shown.textContent =
      entries.length === report.entries.length
        ? count(entries.length, "graph")
        : `${entries.length} of ${count(report.entries.length, "graph")}`;
    figures.replaceChildren(tiles(entries));
    if (report.entries.length > 2)
      plots.replaceChildren(
        scatterCard(entries),
        priceCard(entries, filter, update),
        cactusCard(entries),
        gapCard(entries),
        memoryCard(entries),
        sizeCard(entries),
      );
    table.update(entries);
    hideTip();
  }

  const bar = filterBar(report, filter, update, shown);
  update();
  return el(
    "div",
    { class: "overview" },
    bar,
    figures,
    plots,
    el(
      "section",
      {},
      el("h2", {}, "Graphs"),
      el("p", { class: "hint" }, "Times are predictions of the cost model. Choose a graph to see its kernels."),
      table.node,
    ),
    extras(report),
    failures(report),
    notes(report),
  );
}

function filterBar(report, filter, update, shown) {
  const kinds = KINDS.filter((kind) => report.entries.some((entry) => entry.kind === kind));
  const select = (id, label, options, key) =>
    el(
      "label",
      {},
      label,
      el(
        "select",
        {
          id,
          onchange: (event) => {
            filter[key] = event.target.value;
            update();
          },
        },
        options.map(([value, text]) => el("option", { value }, text)),
      ),
    );
  return el(
    "div",
    { class: "filter" },
    el("input", {
      id: "filter",
      type: "search",
      placeholder: "filter by name\u2026",
      "aria-label": "filter by name",
      oninput: (event) => {
        filter.text = event.target.value;
        update();
      },
    }),
    select("kind", "kind", [["all", "every kind"], ...kinds.map((kind) => [kind, kind])], "kind"),
    select("state", "show", STATES, "state"),
    shown,
  );
}

function graphTable(report) {
  const number = (key, label, hint, value, cell) => ({ key, label, hint, value, cell, number: true });
  const columns = [
    { key: "graph", label: "graph", hint: "model and kind", value: (e) => e.graph, cell: nameCell },
    number(
      "ops",
      "ops",
      "ops of the graph",
      (e) => e.ops,
      (e) => (e.ops === null ? "" : grouped.format(e.ops)),
    ),
    number("library_calls", "library", "ops that are calls of a library", (e) => e.library_calls),
    number("greedy_kernels", "greedy kernels", "kernels of greedy's schedule", (e) => e.greedy_kernels),
    number("kernels", "kernels", "kernels of the chosen schedule", (e) => e.kernels),
    number(
      "greedy",
      "greedy \u00b5s",
      "predicted time of greedy's schedule",
      (e) => e.greedy,
      (e) => us(e.greedy),
    ),
    number(
      "objective",
      "chosen \u00b5s",
      "predicted time of the chosen schedule",
      (e) => e.objective,
      (e) => us(e.objective),
    ),
    ...report.solvers
      .filter((solver) => report.entries.some((e) => e.others[solver]))
      .map((solver) =>
        number(
          `other-${solver}`,
          `${solver} \u00b5s`,
          `predicted time of ${solver}'s schedule`,
          (e) => e.others[solver] ?? null,
          (e) => us(e.others[solver]),
        ),
      ),
    number(
      "agreement",
      "agreement",
      "share of pairs of ops on which greedy and Inductor agree",
      (e) => e.agreement,
      (e) => percent(e.agreement, 1),
    ),
    number("saved", "saved", "share of greedy's predicted time", saved, savedCell),
    number("gap", "gap", "how much cheaper an unknown schedule may be", (e) => e.gap, gapCell),
    number(
      "peak",
      "peak",
      "peak of live bytes, chosen",
      (e) => e.peak,
      (e) => (e.peak === null ? "" : bytes(e.peak)),
    ),
    number("memory", "peak vs greedy", "change of peak memory", memoryChange, (e) => {
      const change = memoryChange(e);
      return change === null
        ? ""
        : Math.abs(change) < 5e-5
          ? "="
          : `${change > 0 ? "+" : "\u2212"}${percent(Math.abs(change))}`;
    }),
    number(
      "solve_s",
      "solve s",
      "wall time of the solve",
      (e) => e.solve_s,
      (e) => seconds(e.solve_s),
    ),
    number(
      "cpu_s",
      "cpu s",
      "processor time of the task",
      (e) => e.cpu_s,
      (e) => seconds(e.cpu_s),
    ),
  ].filter((column) => report.entries.some((entry) => column.value(entry) !== null));
  return sortedTable(columns, report.entries, {
    sort: "saved",
    down: true,
    class: "graphs",
    empty: "No graph passes the filter.",
    pick: (entry) => {
      if (entry.data !== null) openGraph(entry)();
    },
  });
}

function nameCell(entry) {
  const cut = entry.graph.length - entry.kind.length;
  const parts = entry.graph.endsWith(`.${entry.kind}`)
    ? [entry.graph.slice(0, cut - 1), el("span", { class: `suffix ${kindClass(entry)}` }, `.${entry.kind}`)]
    : [entry.graph];
  return entry.data === null
    ? el("span", { title: entry.reason ?? "" }, parts)
    : el(
        "a",
        { href: `#graph/${encodeURIComponent(entry.graph)}`, onclick: (event) => event.stopPropagation() },
        parts,
      );
}

function savedCell(entry) {
  const share = saved(entry);
  if (share === null) return el("span", { class: "bad" }, entry.outcome === "ok" ? "" : entry.outcome);
  const bar = el("i", { class: "bar" });
  bar.style.width = `${Math.min(60, 600 * Math.max(0, share))}px`;
  return el("span", { class: share > 0 ? "good" : share < 0 ? "bad" : "tie" }, bar, savedText(share));
}

function gapCell(entry) {
  if (entry.gap === null) return "";
  return entry.proven ? el("span", { class: "proven", title: "proven optimal" }, "optimal") : percent(entry.gap);
}

function failures(report) {
  const list = report.failures;
  if (!list.length) return null;
  const table = sortedTable(
    [
      { key: "graph", label: "graph", value: (row) => row.graph },
      { key: "solver", label: "solver", value: (row) => row.solver },
      { key: "stage", label: "stage", value: (row) => row.stage },
      {
        key: "outcome",
        label: "outcome",
        value: (row) => row.outcome,
        cell: (row) => el("span", { class: "bad" }, row.outcome),
      },
      {
        key: "reason",
        label: "reason",
        value: (row) => row.reason,
        cell: (row) => el("code", { class: "reason" }, row.reason ?? ""),
      },
    ],
    list,
    { class: "failures" },
  );
  return el("section", {}, el("h2", {}, "What was not solved"), table.node);
}

function notes(report) {
  return el(
    "section",
    { class: "notes" },
    el("h2", {}, "How to read this"),
    el(
      "p",
      {},
      "\u201cOptimal\u201d means: proven cheapest under the stated model of cost and legality, and nothing else. ",
      "Predicted times are not measurements: a batch measures nothing on a device (optfuse bench does, and a report ",
      "can show it).",
    ),
    el(
      "p",
      {},
      "\u201cGreedy\u201d is optfuse\u2019s own statement of TorchInductor\u2019s fusion algorithm, on the same ",
      "legality and prices.",
    ),
    el("dl", {}, report.facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat()),
  );
}

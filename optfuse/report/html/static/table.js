// A table that sorts by any column.
"use strict";

// columns: {key, label, hint, number, value(row), cell(row)}; value gives what is sorted by, cell what is shown.
function sortedTable(columns, rows, options = {}) {
  const state = { key: options.sort ?? columns[0].key, down: options.down ?? false, rows };
  const body = el("tbody");
  const heads = columns.map((column) => {
    const button = el("button", { type: "button", title: column.hint, onclick: () => choose(column) }, column.label);
    return el("th", { scope: "col", class: column.number ? "number" : null, "data-key": column.key }, button);
  });
  const none = el("p", { class: "empty", hidden: true }, options.empty ?? "Nothing to show.");
  const table = el("table", { class: options.class }, el("thead", {}, el("tr", {}, heads)), body);
  const node = el("div", { class: "table" }, table, none);

  function choose(column) {
    state.down = state.key === column.key ? !state.down : Boolean(column.number);
    state.key = column.key;
    draw();
  }

  function draw() {
    const column = columns.find((candidate) => candidate.key === state.key);
    for (const head of heads) {
      const mine = head.dataset.key === state.key;
      head.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
    }
    const sorted = [...state.rows].sort((a, b) => compare(column.value(a), column.value(b), state.down));
    body.replaceChildren(...sorted.map((row) => makeRow(columns, row, options.pick)));
    none.hidden = sorted.length > 0;
    table.hidden = !sorted.length;
  }

  draw();
  return {
    node,
    update: (changed) => {
      state.rows = changed;
      draw();
    },
  };
}

function makeRow(columns, row, pick) {
  const cells = columns.map((column) => {
    const shown = column.cell ? column.cell(row) : column.value(row);
    return el("td", { class: column.number ? "number" : null }, shown === null || shown === undefined ? "" : shown);
  });
  return el("tr", { class: pick ? "pick" : null, onclick: pick ? () => pick(row) : null }, cells);
}

// What is missing comes last, whichever way is sorted.
function compare(a, b, down) {
  const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
  if (noA || noB) return noA - noB;
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return down ? -order : order;
}

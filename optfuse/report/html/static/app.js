// Start: read the report, and show what the address asks for (#graph/NAME, or the overview).
"use strict";

const report = JSON.parse(document.getElementById("report").textContent);
const stage = document.getElementById("view");
let current = null;

function header() {
  const graphs = report.entries.filter((entry) => entry.data !== null);
  const choose = el(
    "select",
    {
      id: "choose",
      "aria-label": "graph",
      onchange: (event) => {
        location.hash = event.target.value ? `#graph/${encodeURIComponent(event.target.value)}` : "#";
      },
    },
    graphs.length > 1 || !report.single ? el("option", { value: "" }, "overview") : null,
    graphs.map((entry) => el("option", { value: entry.graph }, entry.graph)),
  );
  document
    .getElementById("top")
    .append(el("a", { href: "#", class: "name" }, "optfuse"), el("span", { class: "title" }, report.title), choose);
  return choose;
}

const chooser = header();

async function route() {
  const wanted = location.hash.startsWith("#graph/") ? decodeURIComponent(location.hash.slice(7)) : "";
  const only = report.single && report.entries.length === 1 ? report.entries[0] : undefined;
  const entry = wanted ? report.entries.find((candidate) => candidate.graph === wanted) : only;
  hideTip();
  chooser.value = entry ? entry.graph : "";
  current = null;
  if (!entry) {
    document.title = report.title;
    stage.replaceChildren(wanted ? el("p", { class: "empty" }, `There is no graph ${wanted} here.`) : overview(report));
    document.body.dataset.view = "overview";
    return;
  }
  if (entry.data === null) {
    stage.replaceChildren(
      el("p", { class: "empty" }, `${entry.graph} has no schedule: ${entry.reason ?? entry.outcome}`),
    );
    return;
  }
  document.body.dataset.view = "loading";
  const begun = performance.now();
  const asked = location.hash;
  const data = await unpack(entry.data);
  if (location.hash !== asked) return; // something else was asked for in the meantime
  const show = (beside) => {
    current = new GraphView(data, beside, show);
    stage.replaceChildren(current.node);
    current.start();
  };
  show("greedy");
  document.title = `${entry.graph} \u2013 ${report.title}`;
  scrollTo(0, 0);
  document.body.dataset.opened = (performance.now() - begun).toFixed(0);
  document.body.dataset.view = `graph/${entry.graph}`;
}

addEventListener("hashchange", route);
addEventListener("resize", () => current?.resized());
route();

/* The text of the page: header, alerts, events. Everything is inserted as text, never as markup. */
"use strict";
const notes = (() => {
  const element = (tag, words = "", kind = "") => {
    const made = document.createElement(tag);
    made.textContent = words;
    if (kind) made.className = kind;
    return made;
  };
  const { number } = leadline;
  const share = (part) => (part === null ? "n/a" : typeof part === "number" ? `${Number((100 * part).toPrecision(3))} %` : part);
  const clock = (seconds) => new Date(1000 * seconds).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const STATES = { writing: "live", ended: "ended", "broken off": "interrupted" };
  const state = (run) => (run.trouble ? "unreadable" : run.header ? STATES[run.header.state] : "waiting");

  /* Replaces the content of `host` only if it changed, so that a selection or a screen reader is not disturbed. */
  function put(host, children) {
    const next = document.createElement("div");
    next.append(...children);
    if (next.innerHTML !== host.innerHTML) host.replaceChildren(...next.childNodes);
  }

  function facts(rows) {
    const list = element("dl", "", "facts");
    for (const [name, value] of rows) {
      const row = element("div");
      row.append(element("dt", name), element("dd", value));
      list.append(row);
    }
    return list;
  }

  function key(tone) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 22 8");
    svg.setAttribute("aria-hidden", "true");
    path.setAttribute("d", "M0 4H22");
    path.setAttribute("class", `ll-${tone}`);
    svg.append(path);
    return svg;
  }

  function card(run, tone, several) {
    const box = element("section", "", "run"), name = element("h2");
    if (several) { const line = element("span", "", "key"); line.append(key(tone)); name.append(line); }
    name.append(run.file, " ", element("span", state(run), `state ${state(run).split(" ")[0]}`));
    box.append(name);
    if (run.trouble) box.append(element("p", run.trouble, "note"));
    const head = run.header;
    if (!head) return box;
    if (head.note) box.append(element("p", head.note, "note"));
    box.append(facts([
      ["model, parameters", `${head.model || "n/a"}, ${head.parameters}`],
      ["optimizer", head.optimizer || "n/a"],
      ["last step", head.last_step === null ? "none yet" : `${head.last_step}`],
      ["loss", number(head.loss)],
      ["watch overhead", head.budget === null ? share(head.overhead) : `${share(head.overhead)} (budget ${share(head.budget)})`],
      ["started", clock(head.started)],
      ...(head.ranks > 1 ? [["ranks", String(head.ranks)]] : []),
    ]));
    return box;
  }

  function alertItem(alert, run, several) {
    const item = element("li", "", "alert"), head = element("p");
    head.append(element("span", alert.severity === "info" ? "note" : alert.severity, `severity ${alert.severity}`), element("strong", `${alert.code} ${alert.name}`),
                element("span", [several ? run.file : "", alert.where, `since step ${alert.since}`].filter(Boolean).join(" · "), "where"));
    item.append(head, element("p", alert.message));
    if (alert.action) item.append(element("p", alert.action));
    const trend = alert.trend === null ? "" : `${alert.trend > 0 ? "+" : ""}${share(alert.trend)} per step`;
    const more = [trend && `trend ${trend}`, alert.forecast].filter(Boolean).join(" · ");
    if (more) item.append(element("p", more, "note"));
    return item;
  }

  const same = (a, b) => a.code === b.code && a.rank === b.rank && a.since === b.since;

  function alerts(host, past, runs) {
    const several = runs.length > 1;
    const now = runs.flatMap((run) => run.standing.map((alert) => alertItem(alert, run, several)));
    put(host, now.length ? now : [element("li", "No active alerts", "quiet")]);
    const over = runs.flatMap((run) => run.alerts.filter((alert) => alert.state === "raised" && !run.standing.some((each) => same(each, alert))).map((alert) => alertItem(alert, run, several)));
    past.hidden = !over.length;
    past.querySelector("summary").textContent = over.length === 1 ? "1 past alert" : `${over.length} past alerts`;
    put(past.querySelector("ul"), over.reverse());
  }

  function events(section, host, runs) {
    const rows = runs.flatMap((run) => run.events.map((event) => ({ ...event, file: runs.length > 1 ? run.file : "" })));
    const listed = rows.filter((event) => event.kind !== "sample").sort((a, b) => b.time - a.time), sampled = rows.length - listed.length;
    section.hidden = !rows.length;
    section.querySelector("table").hidden = !listed.length;
    section.querySelector(".note").textContent = sampled ? `${sampled === 1 ? "One step was" : `${sampled} steps were`} sampled op by op.` : "";
    put(host, listed.slice(0, 200).map((event) => {
      const row = element("tr");
      row.append(element("td", String(event.step), "number"), element("td", event.kind), element("td", [event.file, event.message].filter(Boolean).join(": ")));
      return row;
    }));
  }

  function figure(title, unit, labels) {
    const made = element("figure", "", "panel"), caption = element("figcaption"), head = element("h3", title), keys = element("p", "", "keys"), plot = element("div", "", "plot");
    if (unit) head.append(" ", element("small", unit));
    for (const { label, tone } of labels) {
      const one = element("span", "", "key"), value = element("b");
      value.dataset.series = "";
      one.append(...(label ? [key(tone), element("span", label, "label"), " "] : []), value);
      keys.append(one);
    }
    caption.append(head, keys);
    made.append(caption, plot);
    const rename = (names) => made.querySelectorAll(".keys .label").forEach((each, i) => { if (names[i] !== undefined) each.textContent = names[i]; });
    return { made, plot, rename };
  }

  return { element, put, card, alerts, events, figure, state, key };
})();

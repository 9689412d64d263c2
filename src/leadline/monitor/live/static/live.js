/* The live page: follows the stream and draws what memory.js holds. */
"use strict";
(() => {
  const CURVES = {
    loss: ["Loss", "", "auto"], grad_norm: ["Gradient", "norm", "log"], update_norm: ["Update", "norm", "log"], lr: ["Learning rate", "", "level"],
    weight_norm: ["Weights", "norm", "log"], grad_clip: ["Clipping", "share of the gradient norm removed", "share"], step_seconds: ["Step time", "seconds", "log"],
    loss_scale: ["Loss scale", "", "log"], non_finite: ["Non-finite gradients", "parameters", "linear"],
  };
  const MAPS = {
    grad_norm: ["Gradient", "norm of each parameter"], update_norm: ["Update", "norm of each parameter"], weight_norm: ["Weight", "norm of each parameter"],
    forward_ms: ["Forward signal", "mean square after each block"], backward_ms: ["Backward signal", "mean square of the gradient at each block"],
    branch_skip: ["Branch / skip", "ratio of RMS values"], likeness: ["Similarity of samples", "share of the signal"], dead: ["Dead units", "share"],
    saturated: ["Saturated units", "share"], attention_logit: ["Attention logits", "maximum"], head_logit: ["Attention logits by head", "maximum"],
    expert_tokens: ["Tokens by expert", "count"], expert_grad_norm: ["Gradient by expert", "norm"], attention_entropy: ["Attention entropy", "nats"],
  };
  const HIDDEN = new Set(["watch_seconds", "overhead"]); // the page header shows the cost of watching
  const SEVERITIES = ["info", "warning", "error"];
  const ONLY_IF_NONZERO = new Set(["non_finite", "grad_clip"]);
  const TONES = ["main", "second", "fourth", "third", "fifth", "sixth"], MAX_CURVES = 16, MAX_MAPS = 16, MAX_COMPLETE_STEPS = 256; // a run of at most so many steps is not thinned

  const find = (id) => document.getElementById(id);
  const known = memory(JSON.parse(find("data").textContent)), { runs } = known, several = runs.length > 1;
  const curves = new Map(), maps = new Map(), depths = new Map();
  let waiting = 0, refined = "", pin = null, xs = [], pointed = { step: null, depth: "" }, shownCheck = "", checkGroup = null, checkRange = null;

  // ---- steps: one cursor and one zoom for all curves and maps ---------------------------------------------------
  const steps = leadline.group({
    onmove(index) { point(index === null ? null : xs[index]); },
    onzoom(range) {
      find("reset").hidden = range === null;
      drawMaps();
      markAlerts();
      const wanted = range ? `first=${Math.max(0, Math.floor(range[0]))}&last=${Math.max(0, Math.ceil(range[1]))}` : "";
      if (wanted === refined) return; // charts repeat their zoom after every update
      refined = wanted;
      clearTimeout(waiting);
      if (wanted) waiting = setTimeout(refine, 250, wanted);
    },
  });

  /* Loads the visible steps of a long run at full resolution. */
  function refine(wanted) {
    runs.forEach(async (run, place) => {
      if (!run.header || run.header.steps <= MAX_COMPLETE_STEPS) return;
      const answer = await fetch(`runs/${place}/window?${wanted}`).catch(() => null);
      if (!answer?.ok) return;
      known.absorb({ run: place, ...(await answer.json()) });
      soon();
    });
  }

  function point(step) {
    pointed.step = step;
    for (const map of maps.values()) for (const each of map.heats) each.point(step);
    showReadout();
  }

  function showReadout() {
    const text = [pointed.step === null || pointed.step === undefined ? "" : `step ${Math.round(pointed.step)}`, pointed.depth].filter(Boolean).join(" · ");
    find("readout").textContent = text || find("readout").dataset.idle;
  }

  const latest = () => Math.max(0, ...runs.map((run) => run.header?.last_step ?? 0));

  function choose(step) {
    pin = step;
    renderPinned();
  }

  // ---- curves over steps --------------------------------------------------------------------------------------------
  function aligned(steps, series, places) {
    const values = new Array(steps.length).fill(null);
    series.steps.forEach((step, i) => { values[places.get(step)] = series.values[i]; });
    return values;
  }

  /* "auto" is a log axis for what is positive; "level" for what does not change, else an even one. */
  function axisKind(kind, series) {
    const numbers = series.flatMap((each) => each.values).filter((value) => typeof value === "number");
    if (kind === "auto") return numbers.every((value) => value > 0) ? "log" : "linear";
    if (kind === "level") return numbers.every((value) => value > 0 && value === numbers[0]) ? "log" : "linear";
    return kind;
  }

  function curveSpec(name, places) {
    const kind = (CURVES[name] || ["", "", "auto"])[2], series = runs.map((run) => run.scalars.get(name) || { steps: [], values: [] });
    return {
      kind: axisKind(kind, series), x: xs,
      series: series.map((each, k) => ({ label: several ? runs[k].file : name, tone: TONES[k], values: aligned(xs, each, places), sparse: true, held: true })),
    };
  }

  const ordered = (order, present) => [...Object.keys(order).filter((name) => present.has(name)), ...[...present].filter((name) => !(name in order)).sort()];

  const isNonzero = (name) => curves.has(name) || runs.some((run) => run.scalars.get(name)?.values.some((value) => value !== 0));

  function renderCurves() {
    const present = new Set(runs.flatMap((run) => [...run.scalars.keys()])), union = new Set();
    for (const name of present) if (HIDDEN.has(name) || (ONLY_IF_NONZERO.has(name) && !isNonzero(name))) present.delete(name);
    const names = ordered(CURVES, present).slice(0, MAX_CURVES);
    for (const run of runs) for (const name of names) for (const step of run.scalars.get(name)?.steps || []) union.add(step);
    if (!union.size) return;
    xs = [...union].sort((a, b) => a - b);
    const places = new Map(xs.map((step, i) => [step, i])), pairs = [];
    for (const name of names) {
      const spec = curveSpec(name, places);
      if (!curves.has(name)) curves.set(name, newCurve(name, spec, names));
      pairs.push([curves.get(name), spec]);
    }
    steps.update(pairs);
    requestAnimationFrame(markAlerts); // by then the charts have their scales
  }

  /* A line in every curve at the step since which an alert holds; its title says which. Lines of one step are one. */
  function markAlerts() {
    const marks = new Map();
    for (const run of runs)
      for (const alert of [...run.alerts.filter((each) => each.state === "raised"), ...run.standing]) {
        const found = marks.get(alert.since) || { words: new Set(), worst: "info" };
        found.words.add(`${alert.code} ${alert.name}`);
        if (SEVERITIES.indexOf(alert.severity) > SEVERITIES.indexOf(found.worst)) found.worst = alert.severity;
        marks.set(alert.since, found);
      }
    for (const { plot } of curves.values()) {
      const { min, max } = plot.scales.x, shown = [...marks].filter(([step]) => step >= min && step <= max);
      plot.over.querySelectorAll(".mark").forEach((each) => each.remove());
      for (const [step, { words, worst }] of shown) {
        const line = notes.element("i", "", `mark ${worst}`);
        line.style.left = `${plot.valToPos(step, "x")}px`;
        line.title = `since step ${step}: ${[...words].join(", ")}`;
        line.dataset.codes = [...words].map((each) => each.split(" ")[0]).join(" ");
        plot.over.append(line);
      }
    }
  }

  function newCurve(name, spec, names) {
    const [title, unit] = CURVES[name] || [name, ""], { made, plot } = notes.figure(title, unit, several ? spec.series : [{ label: "", tone: "main" }]);
    made.dataset.name = name;
    const behind = names.slice(names.indexOf(name) + 1).map((each) => find("curves").querySelector(`[data-name="${CSS.escape(each)}"]`)).find(Boolean);
    find("curves").insertBefore(made, behind || null);
    const chart = leadline.chart(plot, spec, steps);
    pinOnClick(chart);
    return chart;
  }

  /* A click without a drag pins the step under the pointer. */
  function pinOnClick(chart) {
    let from = null;
    chart.plot.over.addEventListener("mousedown", (event) => { from = event.clientX; });
    chart.plot.over.addEventListener("mouseup", (event) => {
      if (from !== null && Math.abs(event.clientX - from) < 3 && steps.at !== null) choose(xs[steps.at]);
      from = null;
    });
  }

  // ---- maps over depth and steps, and the profile of the pinned step -----------------------------------------------
  function depthOf(axis) {
    if (!depths.has(axis)) {
      const group = leadline.group({ onmove(index) {
        const { labels } = longest(axis);
        pointed.depth = index === null || labels[index] === undefined ? "" : labels[index];
        showReadout();
      } });
      depths.set(axis, group);
    }
    return depths.get(axis);
  }

  function longest(axis) {
    const all = runs.map((run) => run.axes[axis]).filter(Boolean);
    return all.reduce((best, each) => (each.labels.length > best.labels.length ? each : best), all[0] || { starts: [], labels: [], count: 0 });
  }

  function profileSpec(name, axis) {
    const { starts } = longest(axis), length = starts.length, labels = [], series = [];
    runs.forEach((run, k) => {
      const own = run.axes[axis]?.starts || [], numbers = (column) => {
        const values = new Array(length).fill(null);
        column.forEach((value, i) => { if (!(value < 0)) values[leadline.nearest(starts, own[i] ?? i)] = Number.isFinite(value) ? value : String(value); });
        return values;
      };
      const vector = run.vectors.get(name), place = vector ? memory.at(vector, pin ?? Infinity) : 0;
      labels.push(`${several ? `${run.file}, ` : ""}step ${vector ? vector.steps[place] : "n/a"}`);
      series.push({ label: "", tone: TONES[k], values: vector ? numbers(vector.columns[place]) : [], sparse: true });
      if (several) return;
      labels.push(vector ? `step ${vector.steps[0]}` : "");
      series.push({ label: "", tone: "second", values: vector ? numbers(vector.columns[0]) : [], sparse: true });
    });
    return { spec: { kind: "log", x: starts, series }, labels };
  }

  function renderMaps() {
    const homes = new Map(runs.flatMap((run) => [...run.vectors].map(([name, vector]) => [name, vector.axis])));
    const names = ordered(MAPS, new Set(homes.keys())).slice(0, MAX_MAPS);
    find("maps-section").hidden = !names.length;
    for (const name of names) {
      const axis = homes.get(name);
      if (!longest(axis).starts.length) continue;
      if (!maps.has(name)) maps.set(name, newMap(name, axis, names));
    }
    renderProfiles();
    drawMaps();
  }

  function newMap(name, axis, names) {
    const [title, unit] = MAPS[name] || [name, `over ${axis}`], row = notes.element("div", "", "map");
    row.dataset.name = name;
    const left = notes.figure(title, unit, []), hosts = runs.map((run, k) => newHeat(left.plot, run, k));
    left.plot.className = "heats";
    const scale = notes.element("p", "", "scale");
    left.made.append(scale);
    const { spec, labels } = profileSpec(name, axis), right = notes.figure(`${title} over depth`, "", spec.series.map((each, k) => ({ ...each, label: labels[k] })));
    right.made.tabIndex = 0;
    row.append(left.made, right.made);
    const behind = names.slice(names.indexOf(name) + 1).map((each) => find("maps").querySelector(`[data-name="${CSS.escape(each)}"]`)).find(Boolean);
    find("maps").insertBefore(row, behind || null);
    const group = depthOf(axis), profile = leadline.chart(right.plot, spec, group);
    group.keys(right.made);
    right.made.addEventListener("keydown", (event) => event.stopPropagation());
    return { name, axis, heats: hosts.map((each) => each.drawn), hosts, scale, profile, rename: right.rename };
  }

  function newHeat(host, run, k) {
    if (several) { const which = notes.element("p", "", "which"); which.append(notes.key(TONES[k]), run.file); host.append(which); }
    const box = notes.element("div", "", "heat"), first = notes.element("span", "", "rows"), last = notes.element("span", "", "rows");
    box.append(first);
    host.append(box, last);
    const drawn = heat(box, {
      onmove(step) { steps.move(leadline.nearest(xs, step)); },
      onleave() { steps.move(null); },
      onpick: choose,
    });
    return { drawn, first, last };
  }

  const range = () => steps.range || [0, 1];

  function drawMaps() {
    for (const { name, heats, hosts, scale } of maps.values()) {
      const found = runs.map((run) => run.vectors.get(name) || { steps: [], columns: [], rows: 0 }), decades = heat.span(found);
      heats.forEach((each, k) => {
        each.show(found[k], range(), decades);
        const axis = runs[k].axes[found[k].axis];
        hosts[k].first.textContent = axis?.labels[0] ?? "";
        hosts[k].last.textContent = axis?.labels.at(-1) ?? "";
      });
      legend(scale, decades, found);
    }
  }

  function legend(host, [low, high], found) {
    const limits = [leadline.number(10 ** low), leadline.number(10 ** high)];
    const any = (test) => found.some(({ columns }) => columns.some((column) => column.some(test)));
    const marks = [["nan", "NaN or infinity", any((value) => Number.isNaN(value) || value === Infinity)], ["zero", "zero", any((value) => value === 0)]].filter((each) => each[2]);
    const key = JSON.stringify([limits, marks]);
    if (host.dataset.key === key) return;
    host.dataset.key = key;
    const bar = document.createElement("canvas");
    [bar.width, bar.height] = [64, 1];
    const ink = bar.getContext("2d");
    for (let x = 0; x < 64; x++) { ink.fillStyle = `rgb(${heat.color(x / 63)})`; ink.fillRect(x, 0, 1, 1); }
    host.replaceChildren(limits[0], bar, limits[1], ...marks.map(([kind, words]) => { const one = notes.element("span"); one.append(notes.element("i", "", `swatch ${kind}`), words); return one; }));
  }

  function renderProfiles() {
    for (const [axis, group] of depths) {
      const pairs = [];
      for (const map of maps.values()) {
        if (map.axis !== axis) continue;
        const { spec, labels } = profileSpec(map.name, axis);
        map.rename(labels);
        pairs.push([map.profile, spec]);
      }
      group.update(pairs);
    }
  }

  // ---- what belongs to the pinned step ------------------------------------------------------------------------------
  function renderPinned() {
    for (const map of maps.values()) for (const each of map.heats) each.pin(pin);
    find("follow").hidden = pin === null;
    find("pinned").textContent = pin === null ? "" : `Pinned at step ${pin}`;
    renderProfiles();
    renderCheck();
  }

  function renderCheck() {
    const place = Number(find("chosen").value || 0), run = runs[place], step = pin ?? latest();
    const stored = run.reports.filter((each) => each <= step).pop() ?? run.reports[0];
    find("export").href = `runs/${place}/report?step=${step}`;
    find("export").title = stored === undefined ? "No check was stored: downloads a report of the whole run" : `Downloads the check stored at step ${stored} as a web page`;
    find("check-section").hidden = stored === undefined;
    const wanted = `${place}:${stored}`;
    if (stored === undefined || wanted === shownCheck) return;
    shownCheck = wanted;
    fetch(`runs/${place}/check?step=${stored}`).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      .then((check) => { if (wanted === shownCheck) drawCheck(check); }).catch(() => { shownCheck = ""; });
  }

  function drawCheck(check) {
    find("check-step").textContent = check.step;
    const host = find("checks"), kept = checkRange, place = find("check-place");
    host.replaceChildren();
    checkGroup = leadline.group({
      onmove(index) { place.textContent = index === null || !check.names[index] ? "" : `Block ${check.blocks[index]}: ${check.names[index]}`; },
      onzoom(range) { checkRange = range; },
    });
    for (const panel of check.panels) {
      const { made, plot } = notes.figure(panel.title, panel.unit, panel.series);
      if (panel.notes.length) made.append(notes.element("p", panel.notes.join(" · "), "note"));
      host.append(made);
      leadline.chart(plot, panel, checkGroup);
    }
    if (kept) checkGroup.zoom(...kept);
  }

  // ---- everything, once per frame --------------------------------------------------------------------------------------
  function render() {
    notes.put(find("runs"), runs.map((run, k) => notes.card(run, TONES[k], several)));
    notes.alerts(find("alerts"), find("past"), runs);
    notes.events(find("events-section"), find("events"), runs);
    renderCurves();
    renderMaps();
    renderCheck();
    document.title = `${notes.state(runs[0])} · step ${latest()} · ${runs.map((run) => run.file).join(", ")}`;
    document.documentElement.dataset.ready = "yes";
  }

  const later = (work) => { let waiting = 0; return () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(work); }; };
  const soon = later(render);

  let token = "";
  function connect() {
    const source = new EventSource(`stream${token ? `?after=${token}` : ""}`), link = find("link");
    source.onopen = () => { link.textContent = "connected"; link.className = ""; };
    source.onmessage = (event) => {
      token = event.lastEventId;
      known.absorb(JSON.parse(event.data));
      soon();
    };
    source.onerror = () => {
      link.textContent = "connection lost; trying again";
      link.className = "lost";
      if (source.readyState !== EventSource.CLOSED) return;
      source.close();
      setTimeout(connect, 1000);
    };
  }

  function keys(element) {
    steps.keys(element);
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter" && steps.at !== null) choose(xs[steps.at]);
      if (event.key === "l" || event.key === "L") choose(null);
    });
  }

  if (several) {
    find("chosen").hidden = false;
    runs.forEach((run, k) => find("chosen").append(new Option(run.file, k)));
  }
  find("chosen").addEventListener("change", renderCheck);
  find("follow").addEventListener("click", () => choose(null));
  find("reset").addEventListener("click", () => steps.reset());
  keys(find("curves"));
  keys(find("maps"));
  find("checks").addEventListener("keydown", (event) => event.stopPropagation());
  const groups = () => [steps, ...depths.values(), ...(checkGroup ? [checkGroup] : [])];
  addEventListener("resize", later(() => { groups().forEach((each) => each.resize()); drawMaps(); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { groups().forEach((each) => each.redraw()); drawMaps(); });
  showReadout();
  connect();
})();

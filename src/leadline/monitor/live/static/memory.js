/* What the page knows of each run, and how updates are merged into it.

   memory(names)        {runs, absorb(message)}; a run is {file, header, scalars, vectors, axes, standing, alerts, events, reports}
                        scalars: name -> {steps, values};  vectors: name -> {axis, rows, steps, columns: [Float32Array]}
   at(vector, step)     index of the last column measured up to a step, else of the first
   Growing data is thinned as in the server (monitor/live/messages.py), so that a page can stay open for days. */
"use strict";
const memory = (() => {
  const MAX_POINTS = 1500, MAX_COLUMNS = 256;

  const empty = (file) => ({ file, header: null, scalars: new Map(), vectors: new Map(), axes: {}, standing: [], alerts: [], events: [], reports: [], trouble: "" });

  function floats(text) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  /* Inserts the sorted `more` into the sorted `steps`; a step that exists is replaced. */
  function merge(steps, values, more, news) {
    more.forEach((step, i) => {
      let place = steps.length;
      while (place > 0 && steps[place - 1] > step) place--;
      if (place > 0 && steps[place - 1] === step) values[place - 1] = news[i];
      else { steps.splice(place, 0, step); values.splice(place, 0, news[i]); }
    });
  }

  function thinned({ steps, values }) {
    if (steps.length <= 2 * MAX_POINTS) return { steps, values };
    const size = Math.ceil((3 * steps.length) / MAX_POINTS), kept = new Set([0, steps.length - 1]);
    for (let start = 0; start < steps.length; start += size) {
      let least = null, most = null, odd = null;
      for (let i = start; i < Math.min(start + size, steps.length); i++) {
        const value = Number(values[i]);
        if (!Number.isFinite(value)) { odd ??= i; continue; }
        if (least === null || value < Number(values[least])) least = i;
        if (most === null || value > Number(values[most])) most = i;
      }
      for (const each of [least, most, odd]) if (each !== null) kept.add(each);
    }
    const places = [...kept].sort((a, b) => a - b);
    return { steps: places.map((i) => steps[i]), values: places.map((i) => values[i]) };
  }

  function halved(vector) {
    if (vector.steps.length <= 2 * MAX_COLUMNS) return vector;
    const kept = (_, i) => i % 2 === 0 || i === vector.steps.length - 1;
    return { ...vector, steps: vector.steps.filter(kept), columns: vector.columns.filter(kept) };
  }

  function take(run, message) {
    run.trouble = message.trouble || "";
    if (!message.header) return;
    if (message.whole) { run.scalars.clear(); run.vectors.clear(); }
    for (const key of ["header", "axes", "standing", "alerts", "events", "reports"]) if (key in message) run[key] = message[key];
    for (const [name, [steps, values]] of Object.entries(message.scalars)) {
      const known = run.scalars.get(name) || { steps: [], values: [] };
      merge(known.steps, known.values, steps, values);
      run.scalars.set(name, thinned(known));
    }
    for (const [name, { axis, rows, steps, data }] of Object.entries(message.vectors)) {
      const numbers = floats(data), old = run.vectors.get(name);
      const known = old && old.rows === rows ? old : { axis, rows, steps: [], columns: [] };
      merge(known.steps, known.columns, steps, steps.map((_, i) => numbers.subarray(i * rows, (i + 1) * rows)));
      run.vectors.set(name, halved(known));
    }
  }

  function at(vector, step) {
    let place = vector.steps.length - 1;
    while (place > 0 && vector.steps[place] > step) place--;
    return place;
  }

  function make(names) {
    const runs = names.map(empty);
    return { runs, absorb(message) { take(runs[message.run], message); } };
  }

  return Object.assign(make, { at });
})();

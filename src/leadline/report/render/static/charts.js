/* Charts over depth or steps, on uPlot. One cursor and one zoom for all charts of a group.

   leadline.group({onmove, onzoom})        what charts share; move(i), zoom(min, max), reset(), redraw(), keys(element),
                                           update([[chart, spec], ...]): chart.update of several at once
   leadline.chart(host, spec, group)       draws `spec` into `host`; returns {update(spec), destroy(), plot}: an update has
                                           the same series with other or more values, and leaves zoom and cursor alone
   leadline.number(value)                  three significant digits, as everywhere in a report
   leadline.ticks(low, high, kind)         the axis, as leadline.drawing.scale has it

   spec: {kind: "log" | "linear" | "share",
          x: [numbers] or null for 0, 1, 2 ...,
          starts: [[place, name], ...]     vertical rules: where a stream begins,
          gaps: [places]                   where there is nothing, so that no line leads over it,
          series: [{label, tone, values, band, sparse, held}]}   band: half-width in e-folds, log scale only;
                                           sparse: the line goes on over what was not measured;
                                           held: there the last value before is told
          limits: [{label, values}]        levels that a line must not cross, dashed, with their labels; null: does not apply,
          stretches: [[label, first, last], ...]   places that a finding is about: a bracket each, above the lines
   A value is a number, null (not measured), "NaN", "Infinity" or "-Infinity". Nothing is dropped: what has no place on
   the axis is drawn as a mark, NaN as a cross and infinity as a triangle above the lines, zero as a ring below them.
   Colours are the page's CSS variables --accent, --alarm, --ink, --quiet, --line. */
"use strict";
const leadline = (() => {
  const LEAST_DECADES = 1, PADDING = 0.06, MOST_TICKS = 6, STEPS = [1, 2, 3, 5, 10, 20, 30, 50, 100], RAIL = 10, ROW = 13, HEIGHT = 190, MANY = 400;
  const TONES = {
    main: { color: "--accent", width: 1.8 },
    theory: { color: "--quiet", width: 1.4, dash: [5, 4] },
    second: { color: "--quiet", width: 1.6 },
    third: { color: "--accent", width: 1.5, dash: [2, 3] },
    fourth: { color: "--ink", width: 1 },
    fifth: { color: "--ink", width: 1, dash: [6, 3] },
    sixth: { color: "--quiet", width: 1.5, dash: [1, 3] },
    limit: { color: "--alarm", width: 1.2, dash: [3, 3] },
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const toNumber = (value) => (value === null || value === undefined ? null : Number(value));

  function number(value) {
    if (value === null || value === undefined) return "n/a";
    const n = Number(value);
    if (Number.isNaN(n)) return "NaN";
    if (!Number.isFinite(n)) return n > 0 ? "Inf" : "-Inf";
    if (n === 0) return "0";
    const size = Math.floor(Math.log10(Math.abs(Number(n.toPrecision(3)))));
    return size < -4 || size >= 3 ? n.toExponential(2).replace("e+", "e") : n.toPrecision(3);
  }

  // ---- axes: the same rules as leadline/drawing/scale.py ------------------------------------------------------
  function position(value, kind) {
    if (value === null || !Number.isFinite(value)) return null;
    if (kind !== "log") return value;
    return value > 0 ? Math.log10(value) : null;
  }

  function fitted(low, high, kind) {
    if (kind === "share") return [-PADDING, 1 + PADDING];
    if (low === null || low === undefined || high === null) [low, high] = [0, 0];
    const least = kind === "log" ? LEAST_DECADES : Math.max(Math.abs(high), 1e-12) * 1e-3;
    const half = Math.max(high - low, least) * (0.5 + PADDING), middle = (low + high) / 2;
    return [middle - half, middle + half];
  }

  /* The axis with room at its low end for the marks of zeros. */
  const railed = ([low, high], needed) => [needed ? low - ((high - low) * 1.5 * RAIL) / (HEIGHT - 40) : low, high];

  function powerLabel(exponent, digit = 1) {
    if (exponent < -3 || exponent > 3) return `${digit}e${exponent}`;
    return (digit * 10 ** exponent).toFixed(Math.max(-exponent, 0));
  }

  function logTicks(low, high) {
    const found = [];
    if (high - low >= 2) {
      const step = STEPS.find((each) => each >= (high - low) / MOST_TICKS) ?? 100;
      for (let at = Math.ceil(low / step) * step; at <= Math.floor(high); at += step) found.push([at, powerLabel(at)]);
      return found;
    }
    for (let n = Math.floor(low); n <= Math.ceil(high); n++)
      for (const digit of [1, 2, 5]) {
        const at = n + Math.log10(digit);
        if (low <= at && at <= high) found.push([at, powerLabel(n, digit)]);
      }
    return found;
  }

  function evenTicks(low, high) {
    const least = (high - low) / MOST_TICKS, size = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((digit) => size * digit).find((each) => each >= least * (1 - 1e-9));
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at++) {
      const value = at * step;
      found.push([value, Math.abs(value) > 1e-12 ? String(Number(value.toPrecision(4))) : "0"]);
    }
    return found;
  }

  const ticks = (low, high, kind) => (kind === "log" ? logTicks(low, high) : evenTicks(low, high));

  function mark(value, kind) {
    if (value === null) return null;
    if (Number.isNaN(value)) return "nan";
    if (!Number.isFinite(value)) return "infinite";
    return kind === "log" && value <= 0 ? "zero" : null;
  }

  // ---- a group: one cursor, one zoom ---------------------------------------------------------------------------
  function group({ onmove = () => {}, onzoom = () => {} } = {}) {
    const charts = new Set();
    let at = null, busy = false, full = null, range = null;
    const quietly = (work) => {
      if (busy) return;
      busy = true;
      try { work(); } finally { busy = false; }
    };
    const self = {
      charts,
      get at() { return at; },
      get range() { return range || full; },
      get zoomed() { return range !== null; },
      add(chart) {
        charts.add(chart);
        self.refit();
      },
      remove(chart) { charts.delete(chart); },
      update(pairs) {
        const first = charts.values().next().value, x = first && at !== null ? first.place(at) : null;
        for (const [chart, spec] of pairs) chart.refill(spec);
        self.refit();
        if (at !== null) self.move(first.near(x));
      },
      refit() { // behind a change of data: what is zoomed stays, what was whole is whole again
        const ends = [...charts].map((chart) => chart.extent());
        full = [Math.min(...ends.map((each) => each[0])), Math.max(...ends.map((each) => each[1]))];
        quietly(() => { for (const chart of charts) chart.zoom(...self.range); });
      },
      move(index, from = null) {
        quietly(() => {
          at = index;
          for (const chart of charts) if (chart !== from) chart.point(index);
          for (const chart of charts) chart.tell(index);
          onmove(index);
        });
      },
      zoom(min, max, from = null) {
        if (min === self.range[0] && max === self.range[1]) return; // a chart that tells what it was told
        quietly(() => {
          const whole = min <= full[0] && max >= full[1];
          range = whole ? null : [min, max];
          for (const chart of charts) if (chart !== from || whole) chart.zoom(...self.range);
          onzoom(range);
        });
      },
      reset() { if (full) self.zoom(...full); },
      redraw() { for (const chart of charts) chart.redraw(); },
      resize() { quietly(() => { for (const chart of charts) chart.resize(); }); },
      keys(element) { element.addEventListener("keydown", (event) => pressed(event, self)); },
    };
    return self;
  }

  function pressed(event, shared) {
    if (event.ctrlKey || event.metaKey || event.altKey || !shared.charts.size) return;
    const [low, high] = shared.range, step = event.shiftKey ? 10 : 1;
    const here = shared.at === null ? Math.round((low + high) / 2) : shared.at;
    const within = (place) => Math.min(Math.max(place, Math.ceil(low)), Math.floor(high));
    const scaled = (by) => {
      const half = Math.max(((high - low) / 2) * by, 1);
      shared.zoom(here - half, here + half);
    };
    const doing = {
      ArrowLeft: () => shared.move(shared.at === null ? here : within(here - step)),
      ArrowRight: () => shared.move(shared.at === null ? here : within(here + step)),
      Home: () => shared.move(Math.ceil(low)),
      End: () => shared.move(Math.floor(high)),
      "+": () => scaled(0.5),
      "=": () => scaled(0.5),
      "-": () => scaled(2),
      Escape: () => { shared.reset(); shared.move(null); },
    }[event.key];
    if (!doing) return;
    event.preventDefault();
    doing();
  }

  // ---- one chart --------------------------------------------------------------------------------------------------
  function columns(spec) {
    const length = Math.max(0, ...spec.series.map((each) => each.values.length));
    const xs = spec.x || Array.from({ length }, (_, i) => i);
    const drawn = [...spec.series, ...(spec.limits || []).map((each) => ({ ...each, tone: "limit" }))]; // limits last: `raw` begins with the series
    const raw = drawn.map((each) => each.values.map(toNumber));
    const data = [xs], lines = [{}], bands = [], gaps = new Set(spec.gaps || []);
    drawn.forEach((each, k) => {
      const tone = TONES[each.tone] || TONES.main;
      const missing = (value, i) => (each.sparse && value === null && !gaps.has(i) ? undefined : null); // uPlot leads over undefined
      data.push(raw[k].map((value, i) => position(value, spec.kind) ?? missing(value, i)));
      lines.push({
        label: each.label, stroke: () => css(tone.color), width: length > MANY ? Math.min(tone.width, 1) : tone.width, dash: tone.dash,
        points: { show: (u) => u.data[0].length <= 24 && !tone.dash, filter: (u, i, show) => (show ? null : alone(u.data[i])), size: 4, fill: () => css(tone.color), stroke: () => css(tone.color) },
      });
      if (!each.band) return;
      const edge = (sign) => raw[k].map((value, i) => {
        const place = position(value, spec.kind), band = toNumber(each.band[i]);
        return place === null || band === null || !Number.isFinite(band) ? null : place + (sign * band) / Math.LN10;
      });
      const first = data.length;
      data.push(edge(+1), edge(-1));
      for (let i = 0; i < 2; i++) lines.push({ stroke: "transparent", width: 0, points: { show: false }, scale: "y", auto: false });
      bands.push({ series: [first, first + 1], fill: () => css("--band") });
    });
    const empty = !data.slice(1).some((values) => values.some((value) => value !== null && value !== undefined));
    const zeros = raw.some((values) => values.some((value) => mark(value, spec.kind) === "zero"));
    return { xs, raw, data, lines, bands, zeros, empty };
  }

  function lastKnown(values, index) {
    while (index > 0 && values[index] === null) index--;
    return index;
  }

  /* The index of what is closest to `x` among rising numbers; null among none. */
  function nearest(rising, x) {
    let low = 0, high = rising.length - 1;
    if (high < 0) return null;
    while (high - low > 1) { const middle = (low + high) >> 1; if (rising[middle] <= x) low = middle; else high = middle; }
    return x - rising[low] <= rising[high] - x ? low : high;
  }

  /* Places of values between two that are not there: no line leads to them, so each is a point. */
  function alone(values) {
    const there = (i, step) => { while (values[i] === undefined && i >= 0 && i < values.length) i += step; return typeof values[i] === "number"; };
    const found = [];
    for (let i = 0; i < values.length; i++) if (typeof values[i] === "number" && !there(i - 1, -1) && !there(i + 1, +1)) found.push(i);
    return found.length ? found : null;
  }

  function chart(host, spec, shared) {
    let made = columns(spec), plot = null, kind = spec.kind;
    const tells = [...(host.closest("figure") || host).querySelectorAll("[data-series]")];
    const self = {
      extent: () => (made.xs.length > 1 ? [made.xs[0], made.xs[made.xs.length - 1]] : [(made.xs[0] || 0) - 0.5, (made.xs[0] || 0) + 0.5]),
      point(index) {
        const x = index === null ? undefined : made.xs[index];
        plot.setCursor(x === undefined ? { left: -10, top: -10 } : { left: plot.valToPos(x, "x"), top: plot.over.clientHeight / 2 }, false);
      },
      tell(index) {
        tells.forEach((element, k) => {
          element.textContent = index === null || !spec.series[k] ? "" : number(made.raw[k][spec.series[k].held ? lastKnown(made.raw[k], index) : index]);
        });
      },
      zoom(min, max) { plot.setScale("x", { min, max }); },
      redraw() { plot.redraw(false, true); },
      resize() { plot.setSize({ width: Math.max(host.clientWidth, 120), height: HEIGHT }); },
      refill(next) { spec = next; kind = next.kind; made = columns(next); plot.setData(made.data, false); },
      place: (index) => made.xs[Math.min(index, made.xs.length - 1)],
      near: (x) => nearest(made.xs, x),
      update(next) { // the same series with other values, perhaps more of them
        if (shared) { shared.update([[self, next]]); return; }
        self.refill(next);
        self.zoom(...self.extent());
      },
      destroy() { if (shared) shared.remove(self); plot.destroy(); },
      get plot() { return plot; },
    };
    const axis = { stroke: () => css("--muted"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(host.clientWidth, 120), height: HEIGHT,
      legend: { show: false },
      padding: [() => RAIL + ROW * (spec.stretches || []).length, 16, 0, 0],
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 7, width: 0, fill: (u, i) => (u.series[i].width ? u.series[i].stroke(u, i) : "transparent") } },
      scales: { x: { time: false, range: (u, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
                y: { range: (u, low, high) => railed(fitted(low, high, kind), made.zeros) } },
      axes: [
        { ...axis, size: 26, space: 60, grid: { show: false }, values: (u, places) => places.map((at) => (Number.isInteger(at) ? String(at) : "")) },
        { ...axis, size: 52, splits: (u, i, low, high) => (made.empty ? [] : ticks(low, high, kind)).map((tick) => tick[0]),
          values: (u, places) => { const known = new Map(ticks(u.scales.y.min, u.scales.y.max, kind)); return places.map((at) => known.get(at) ?? ""); } },
      ],
      series: made.lines, bands: made.bands,
      hooks: {
        drawClear: [(u) => rules(u, spec.starts || [])],
        draw: [(u) => { marks(u, made, kind); limits(u, made, spec); stretches(u, made, spec.stretches || []); }],
        setCursor: [(u) => shared && shared.move(u.cursor.idx ?? null, self)],
        setScale: [(u, key) => { if (key === "x" && plot && shared) shared.zoom(u.scales.x.min, u.scales.x.max, self); }],
      },
    };
    aside(host);
    plot = new uPlot(options, made.data, host);
    if (shared) shared.add(self);
    return self;
  }

  /* The picture that stood in the chart's place is kept for paper, where it is as sharp and as wide as it has to be. */
  function aside(host) {
    const kept = document.createElement("div");
    kept.className = "sketch";
    kept.append(...host.childNodes);
    host.append(kept);
  }

  /* Vertical rules where a stream begins, with its name; none at the first, which is the frame. */
  function rules(u, starts) {
    const { ctx, bbox } = u, unit = devicePixelRatio;
    if (starts.length < 2) return;
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = css("--muted");
    ctx.font = `${11 * unit}px system-ui, sans-serif`;
    for (const [place, name] of starts) {
      const x = u.valToPos(place - (place ? 1 : 0), "x", true);
      if (x < bbox.left - 1 || x > bbox.left + bbox.width) continue;
      if (place) { ctx.globalAlpha = 0.4; ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke(); ctx.globalAlpha = 1; }
      ctx.fillText(name.slice(0, 24), x + 5 * unit, bbox.top + 11 * unit);
    }
    ctx.restore();
  }

  function label(ctx, text, x, y) {
    ctx.fillStyle = css("--muted");
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillText(text, x, y);
  }

  /* What has no place on the axis. */
  function marks(u, made, kind) {
    const { ctx, bbox } = u, unit = devicePixelRatio, size = 3 * unit;
    const top = bbox.top - (RAIL / 2) * unit, bottom = bbox.top + bbox.height - (RAIL / 2) * unit;
    ctx.save();
    ctx.lineWidth = 1.4 * unit;
    ctx.setLineDash([]); // uPlot leaves that of the last line
    if (made.zeros) label(ctx, "0", bbox.left - 8 * unit, bottom);
    for (const values of made.raw) {
      values.forEach((value, i) => {
        const what = mark(value, kind);
        if (!what) return;
        const x = u.valToPos(made.xs[i], "x", true);
        if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
        ctx.strokeStyle = ctx.fillStyle = css(what === "zero" ? "--ink" : "--alarm");
        ctx.beginPath();
        if (what === "nan") { ctx.moveTo(x - size, top - size); ctx.lineTo(x + size, top + size); ctx.moveTo(x + size, top - size); ctx.lineTo(x - size, top + size); ctx.stroke(); }
        else if (what === "infinite") { ctx.moveTo(x - size, top + size); ctx.lineTo(x + size, top + size); ctx.lineTo(x, top - size); ctx.fill(); }
        else { ctx.arc(x, bottom, size * 0.8, 0, 7); ctx.stroke(); }
      });
    }
    ctx.restore();
  }

  function alarmed(ctx) {
    ctx.strokeStyle = ctx.fillStyle = css("--alarm");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.setLineDash([]); // uPlot leaves that of the last line
  }

  /* The label of each limit, above the left end of what is seen of its line. */
  function limits(u, made, spec) {
    const { ctx, bbox } = u, unit = devicePixelRatio;
    ctx.save();
    alarmed(ctx);
    (spec.limits || []).forEach((each, k) => {
      const values = made.raw[spec.series.length + k];
      const first = values.findIndex((value, i) => value !== null && made.xs[i] >= u.scales.x.min && made.xs[i] <= u.scales.x.max);
      if (first < 0) return;
      const place = position(values[first], spec.kind);
      if (place !== null) ctx.fillText(each.label, Math.max(u.valToPos(made.xs[first], "x", true), bbox.left) + 3 * unit, u.valToPos(place, "y", true) - 4 * unit);
    });
    ctx.restore();
  }

  /* A bracket over each stretch with its label beside it; a single place gets a line down to the axis. */
  function stretches(u, made, rows) {
    const { ctx, bbox } = u, unit = devicePixelRatio, end = bbox.left + bbox.width;
    const within = (x) => Math.min(Math.max(x, bbox.left), end);
    ctx.save();
    alarmed(ctx);
    rows.forEach(([label, first, last], row) => {
      const ends = [first, last].map((place) => u.valToPos(made.xs[place], "x", true));
      if (ends[1] < bbox.left - 1 || ends[0] > end + 1) return;
      const [left, right] = ends.map(within), y = bbox.top - (RAIL + ROW * (rows.length - row) - 4) * unit;
      ctx.beginPath();
      if (first === last) { ctx.moveTo(left, y); ctx.lineTo(left, bbox.top + bbox.height); }
      else { ctx.moveTo(left, y + 4 * unit); ctx.lineTo(left, y); ctx.lineTo(right, y); ctx.lineTo(right, y + 4 * unit); }
      ctx.stroke();
      const room = ctx.measureText(label).width + 4 * unit;
      ctx.fillText(label, left + room < end ? left + 4 * unit : left - room, y + 11 * unit);
    });
    ctx.restore();
  }

  return { chart, group, number, ticks, fitted, nearest };
})();

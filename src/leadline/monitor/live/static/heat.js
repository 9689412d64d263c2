/* Heat maps: depth downwards, steps to the right, color on a log scale. One small canvas per map at any depth.

   heat(host, {onmove(step), onleave(), onpick(step)})   draws into `host`
     .show({steps, columns, rows}, [first, last], [low, high])   the visible steps; decades from dark to bright
     .point(step), .pin(step)                             vertical lines at a step, or null
   heat.span(maps)                                        [low, high] decades of all positive numbers
   heat.color(share)                                      [red, green, blue] for 0 to 1

   Lightness rises from dark blue over gray to yellow, so the order is visible with any color vision and in print.
   NaN and infinity have the alarm color; zero is black; what was not measured is transparent. */
"use strict";
const heat = (() => {
  const STOPS = [[8, 29, 74], [44, 70, 110], [92, 101, 117], [138, 134, 119], [189, 171, 101], [250, 229, 76]];
  const MAX_DECADES = 12; // smaller values have the darkest color
  const HEIGHT = 140;

  function color(share) {
    const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1), low = Math.min(Math.floor(place), STOPS.length - 2), part = place - low;
    return STOPS[low].map((from, i) => Math.round(from + (STOPS[low + 1][i] - from) * part));
  }

  function span(maps) {
    let low = Infinity, high = -Infinity;
    for (const { columns } of maps)
      for (const column of columns)
        for (const value of column) if (value > 0 && value < Infinity) { if (value < low) low = value; if (value > high) high = value; }
    if (low > high) return [-1, 0];
    const [bottom, top] = [Math.log10(low), Math.log10(high)];
    return top - bottom < 0.1 ? [bottom - 0.05, top + 0.05] : [Math.max(bottom, top - MAX_DECADES), top];
  }

  /* Returns the function from a number to its packed color; 0 is transparent. */
  function painter([low, high], alarm) {
    const table = Array.from({ length: 256 }, (_, i) => pack(color(i / 255)));
    const odd = pack(alarm), black = pack([0, 0, 0]), scale = 255 / (high - low);
    return (value) => {
      if (Number.isNaN(value) || value === Infinity) return odd;
      if (value < 0) return 0;
      if (value === 0) return black;
      return table[Math.min(Math.max(Math.round((Math.log10(value) - low) * scale), 0), 255)];
    };
  }

  /* Several steps in one pixel show the largest value of each row; NaN wins. */
  function largest(columns, first, last) {
    if (first === last) return columns[last];
    return columns[last].map((_, row) => {
      let most = columns[first][row];
      for (let i = first + 1; i <= last; i++) if (!(columns[i][row] <= most)) most = Number.isNaN(most) ? most : columns[i][row];
      return most;
    });
  }

  const pack = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  function rgb(name) {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }

  function make(host, { onmove, onleave, onpick }) {
    const canvas = document.createElement("canvas"), cursor = document.createElement("i"), pinned = document.createElement("i");
    canvas.height = HEIGHT;
    cursor.className = "line";
    pinned.className = "line pinned";
    host.append(canvas, cursor, pinned);
    let range = [0, 1], places = { cursor: null, pinned: null };
    const stepAt = (event) => {
      const box = canvas.getBoundingClientRect();
      return range[0] + ((event.clientX - box.left) / box.width) * (range[1] - range[0]);
    };
    canvas.addEventListener("mousemove", (event) => onmove(stepAt(event)));
    canvas.addEventListener("mouseleave", onleave);
    canvas.addEventListener("click", (event) => onpick(Math.round(stepAt(event))));

    function put(line, step) {
      const share = step === null ? -1 : (step - range[0]) / (range[1] - range[0]);
      line.hidden = !(share >= 0 && share <= 1);
      line.style.top = `${canvas.offsetTop}px`;
      line.style.left = `calc(${canvas.offsetLeft}px + ${Math.min(Math.max(share, 0), 1)} * ${canvas.offsetWidth}px)`;
    }

    const self = {
      show(map, seen, decades) {
        range = seen[1] > seen[0] ? seen : [seen[0] - 0.5, seen[0] + 0.5];
        const width = Math.max(canvas.offsetWidth, 1), { steps, columns, rows } = map;
        canvas.width = width;
        if (!steps.length || !rows) return;
        const image = new ImageData(width, HEIGHT), pixels = new Uint32Array(image.data.buffer), paint = painter(decades, rgb("--alarm"));
        const last = steps.length > 1 ? steps[steps.length - 1] + (steps[steps.length - 1] - steps[0]) / (steps.length - 1) : Infinity;
        let column = -1, painted = null;
        for (let x = 0; x < width; x++) {
          const step = range[0] + (x / width) * (range[1] - range[0]);
          const before = column, end = x + 1 < width ? step + (range[1] - range[0]) / width : Infinity;
          while (column + 1 < steps.length && (steps[column + 1] <= step || (x > 0 && steps[column + 1] < end))) column++;
          if (column < 0 || step > last) continue;
          if (before !== column) painted = Array.from(x ? largest(columns, Math.max(before + 1, 0), column) : columns[column], paint);
          for (let y = 0; y < HEIGHT; y++) pixels[y * width + x] = painted[Math.floor((y * rows) / HEIGHT)];
        }
        canvas.getContext("2d").putImageData(image, 0, 0);
        put(cursor, places.cursor);
        put(pinned, places.pinned);
      },
      point(step) { places.cursor = step; put(cursor, step); },
      pin(step) { places.pinned = step; put(pinned, step); },
    };
    return self;
  }

  return Object.assign(make, { span, color });
})();

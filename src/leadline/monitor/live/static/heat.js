/* Heat maps: depth downwards, steps to the right, colour on a log scale. One small canvas a map, however deep the model.

   heat(host, {onmove(step), onleave(), onpick(step)})   draws into `host`
     .show({steps, columns, rows}, [first, last], [low, high])   the steps in sight; decades from dark to bright
     .point(step), .pin(step)                             lines at a step, or null
   heat.span(maps)                                        [low, high] decades that hold all positive numbers
   heat.color(share)                                      [red, green, blue] for 0 to 1

   Lightness rises from dark blue over grey to yellow, so the order is seen with any colour vision and in print.
   Not a number is the colour of alarms; exactly zero is black; what was not measured is left out. */
"use strict";
const heat = (() => {
  const STOPS = [[8, 29, 74], [44, 70, 110], [92, 101, 117], [138, 134, 119], [189, 171, 101], [250, 229, 76]];
  const MOST_DECADES = 12; // what is further below the largest is drawn as the darkest
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
    return top - bottom < 0.1 ? [bottom - 0.05, top + 0.05] : [Math.max(bottom, top - MOST_DECADES), top];
  }

  /* The colour of a number as it stands in an image; 0 is transparent. */
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

  /* What several steps below one pixel show: the largest of each row; no number wins. */
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
    const said = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((i) => parseInt(said.slice(i, i + 2), 16));
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

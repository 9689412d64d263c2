/* A report page: draws its charts from the data in the page, and saves what the page carries. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const groups = [];

  function draw(article, report) {
    const readout = article.querySelector(".readout"), reset = article.querySelector(".reset");
    const names = report.names;
    const shared = leadline.group({
      onmove(index) { readout.textContent = index === null || !names[index] ? readout.dataset.idle : `block ${report.blocks[index]}  ${names[index]}`; },
      onzoom(range) { reset.hidden = range === null; },
    });
    for (const host of article.querySelectorAll("[data-panel]")) leadline.chart(host, report.panels[Number(host.dataset.panel)], shared);
    const profiles = article.querySelector(".profiles");
    if (profiles) shared.keys(profiles);
    if (reset) reset.addEventListener("click", () => shared.reset());
    groups.push(shared);
    for (const host of article.querySelectorAll("[data-curve]")) {
      const alone = leadline.group();
      leadline.chart(host, report.curves[Number(host.dataset.curve)], alone);
      alone.keys(host);
      groups.push(alone);
    }
  }

  async function record(report) {
    const packed = Uint8Array.from(atob(report.record), (char) => char.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  document.querySelectorAll("article").forEach((article, i) => draw(article, data[i]));
  document.querySelectorAll("[data-save]").forEach((button) =>
    button.addEventListener("click", async () => {
      const report = data[Number(button.dataset.report)];
      if (button.dataset.save === "json") save("report.json", "application/json", await record(report));
      else save("report.md", "text/markdown", report.markdown);
    }));
  document.querySelectorAll("[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => {
      const text = button.closest("div").querySelector("pre").textContent;
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
      catch { button.textContent = "select and copy by hand"; }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    }));

  const later = (work) => { let waiting = 0; return () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(work); }; };
  addEventListener("resize", later(() => groups.forEach((each) => each.resize())));
  const redraw = () => groups.forEach((each) => each.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => { document.querySelectorAll("details").forEach((each) => { each.open = true; }); });
  requestAnimationFrame(() => performance.mark("drawn")); // behind the frame in which uPlot draws
  document.documentElement.dataset.ready = "yes";
})();

// Draws the charts: options from the page, colours from its style sheet, drawn again for dark, light, paper and width.
"use strict";
(() => {
  const options = JSON.parse(document.getElementById("options").textContent);
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const errors = [];
  // Lines that have an interval beside them: their points stand side by side, so that the ends can be told apart.
  const beside = new Set(options.flatMap((o) => o.series.filter((s, i) => o.series[i + 1]?.type === "interval")));
  window.addEventListener("error", (e) => { errors.push(e.message); document.body.dataset.errors = errors.join("; "); });

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (v) => typeof v !== "number" ? "–" : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en")
    : String(Number(v.toPrecision(4)));

  // `interval` is the page's own kind of series: a bar with ends from low to high.
  const shift = (s) => s.color === "--without" || s.color === "--second" ? 5 : 0;
  const interval = (s) => ({
    type: "custom", name: s.name, z: 3, silent: true, tooltip: { show: false },
    itemStyle: { color: colour(s.color) }, encode: { x: 0, y: [1, 2] }, data: s.data,
    renderItem: (_, api) => {
      const [at, low] = api.coord([api.value(0), api.value(1)]);
      const x = at + shift(s);
      const high = api.coord([api.value(0), api.value(2)])[1];
      const style = { stroke: colour(s.color), lineWidth: 1.5, fill: "none" };
      const bar = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
      return { type: "group", children: [bar(x, low, x, high), bar(x - 4, low, x + 4, low), bar(x - 4, high, x + 4, high)] };
    },
  });

  const series = (s) => {
    if (s.type === "interval") return interval(s);
    const own = { ...s, color: colour(s.color), connectNulls: false };
    if (beside.has(s)) own.symbolOffset = [shift(s), 0];
    if (s.type === "line") own.lineStyle = { width: 2, type: s.color === "--without" ? "dashed" : "solid" };
    if (s.markLine) own.markLine = { ...s.markLine, lineStyle: { color: colour("--faint"), type: "dotted" } };
    return own;
  };

  const axis = (a, isX, width) => ({
    ...a,
    nameLocation: isX ? "middle" : "end", nameGap: isX ? 30 : 12,
    nameTextStyle: { color: colour("--faint"), align: isX ? "center" : "left" },
    axisLabel: { color: colour("--faint"), hideOverlap: true, ...(isX && a.type === "category" ? { hideOverlap: false, interval: 0, width: Math.max(24, (width - 70) / a.data.length - 4), overflow: "break", fontSize: 10, lineHeight: 13 } : { formatter: isX ? undefined : shown }) },
    axisLine: { show: isX, lineStyle: { color: colour("--rule") } }, axisTick: { show: false },
    splitLine: { show: !isX, lineStyle: { color: colour("--rule") } },
  });

  const dressed = (o, width) => ({
    animation: false, backgroundColor: "transparent", textStyle: { fontFamily: "system-ui, sans-serif" },
    aria: { enabled: true },
    grid: { left: 8, right: 16, top: 56, bottom: o.xAxis.name ? 30 : 8, containLabel: true },
    legend: { top: 0, left: 0, data: [...new Set(o.series.filter((s) => s.type !== "interval").map((s) => s.name))],
      textStyle: { color: colour("--ink") } },
    tooltip: { trigger: "axis", confine: true, valueFormatter: shown,
      backgroundColor: colour("--tint"), borderColor: colour("--rule"), textStyle: { color: colour("--ink") } },
    xAxis: axis(o.xAxis, true, width), yAxis: axis(o.yAxis, false, width),
    series: o.series.map(series),
  });

  let charts = [];
  const draw = () => {
    charts.forEach((c) => c.dispose());
    charts = boxes.map((box) => {
      const chart = echarts.init(box, null, { renderer: "svg" });
      chart.setOption(dressed(options[Number(box.dataset.chart)], box.clientWidth));
      // What is really drawn, for whoever checks the page.
      box.dataset.series = JSON.stringify(chart.getOption().series.map((s) => ({ name: s.name, type: s.type, data: s.data })));
      return chart;
    });
    document.body.dataset.drawn = String(boxes.filter((b) => b.querySelector("svg path")).length);
    document.body.dataset.errors = errors.join("; ");
  };

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
})();

// Draws the charts: options from the page, drawn again for another width. Colours are the style sheet's variables in the drawing
// itself, so that dark, light and paper need no other drawing.
"use strict";
(() => {
  const options = JSON.parse(document.getElementById("options").textContent);
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const errors = [];
  window.addEventListener("error", (e) => { errors.push(e.message); document.body.dataset.errors = errors.join("; "); });

  const colour = (name) => `var(${name})`;
  const shown = (v) => typeof v !== "number" ? "–" : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en")
    : String(Number(v.toPrecision(4)));

  // `interval` is the page's own kind of series: a line with ends from low to high, beside the line or on the bar it belongs to.
  const interval = (s) => ({
    type: "custom", name: s.name, z: 3, silent: true, tooltip: { show: false },
    itemStyle: { color: colour(s.color) }, encode: { x: 0, y: [1, 2] }, data: s.data,
    renderItem: (_, api) => {
      const [at, low] = api.coord([api.value(0), api.value(1)]);
      const x = at + (s.bar ? api.barLayout({ count: s.bar[1], barMaxWidth: s.bar[2] })[s.bar[0]].offsetCenter : s.shift);
      const high = api.coord([api.value(0), api.value(2)])[1];
      const style = { stroke: colour(s.color), lineWidth: 1.5, fill: "none" };
      const bar = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
      return { type: "group", children: [bar(x, low, x, high), bar(x - 4, low, x + 4, low), bar(x - 4, high, x + 4, high)] };
    },
  });

  const series = (s) => {
    if (s.type === "interval") return interval(s);
    // The library would make a lighter colour of its own under the pointer, which it cannot of a variable.
    const own = { ...s, color: colour(s.color), connectNulls: false, emphasis: { disabled: true } };
    if (s.shift) own.symbolOffset = [s.shift, 0];
    if (s.type === "line") own.lineStyle = { width: s.apart ? 0 : 2, type: s.dashed ? "dashed" : "solid" };
    if (s.markLine) own.markLine = { ...s.markLine, label: { ...s.markLine.label, color: colour("--faint"), textBorderWidth: 0 },
      lineStyle: { color: colour("--faint"), type: "dotted" } };
    return own;
  };

  // About as wide as its letters are.
  const wide = (text, size) => text.length * size * .56;

  // Names of points: broken into lines, or, where the longest word would not fit, set aslant.
  const places = (names, width) => {
    const each = Math.max(24, (width - 70) / names.length - 4);
    const longest = Math.max(...names.flatMap((n) => n.split(" ")).map((w) => wide(w, 10)));
    return { hideOverlap: false, interval: 0, fontSize: 10, lineHeight: 13,
      ...(longest > each ? { rotate: 40 } : { width: each, overflow: "break" }) };
  };

  const axis = (a, isX, width) => {
    const at = isX && a.type === "category" ? places(a.data, width) : { formatter: isX ? undefined : shown };
    return {
      ...a,
      nameLocation: isX ? "middle" : "end", nameGap: at.rotate ? 46 : isX ? 30 : 12,
      nameTextStyle: { color: colour("--faint"), align: isX ? "center" : "left" },
      axisLabel: { color: colour("--faint"), hideOverlap: true, ...at },
      axisLine: { show: isX, lineStyle: { color: colour("--rule") } }, axisTick: { show: false },
      splitLine: { show: !isX, lineStyle: { color: colour("--rule") } },
    };
  };

  // How many lines a legend takes: the drawing begins below it.
  const lines = (names, width) => {
    let [count, used] = [1, 0];
    for (const name of names) {
      const own = wide(name, 12) + 42;
      if (used > 0 && used + own > width) [count, used] = [count + 1, 0];
      used += own;
    }
    return count;
  };

  const dressed = (o, width) => {
    const names = [...new Set(o.series.filter((s) => s.type !== "interval").map((s) => s.name))];
    return {
      animation: false, backgroundColor: "transparent", textStyle: { fontFamily: "system-ui, sans-serif" },
      aria: { enabled: true },
      grid: { left: 8, right: 16, top: 36 + 20 * lines(names, width), bottom: o.xAxis.name ? 30 : 8, containLabel: true },
      legend: { top: 0, left: 0, data: names, textStyle: { color: colour("--ink") } },
      tooltip: { trigger: "axis", confine: true, valueFormatter: shown,
        backgroundColor: colour("--tint"), borderColor: colour("--rule"), textStyle: { color: colour("--ink") } },
      xAxis: axis(o.xAxis, true, width), yAxis: axis(o.yAxis, false, width),
      series: o.series.map(series),
    };
  };

  let charts = [];
  const draw = () => {
    charts.forEach((c) => c.dispose());
    charts = boxes.map((box) => {
      const chart = echarts.init(box, null, { renderer: "svg" });
      chart.setOption(dressed(options[Number(box.dataset.chart)], box.clientWidth));
      // On paper the drawing is scaled, not cut.
      box.querySelector("svg")?.setAttribute("viewBox", `0 0 ${chart.getWidth()} ${chart.getHeight()}`);
      // What is really drawn, for whoever checks the page.
      box.dataset.series = JSON.stringify(chart.getOption().series.map((s) => ({ name: s.name, type: s.type, data: s.data })));
      return chart;
    });
    document.body.dataset.drawn = String(boxes.filter((b) => b.querySelector("svg path")).length);
    document.body.dataset.errors = errors.join("; ");
  };

  draw();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
})();

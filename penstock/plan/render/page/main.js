// The page: legend, tools, one view per timeline.

function drawSwatch(colours, mark) {
  const canvas = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  const width = 18;
  canvas.width = width * colours.length * ratio;
  canvas.height = 14 * ratio;
  canvas.style.width = `${width * colours.length}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  colours.forEach((colour, i) => {
    context.fillStyle = colour;
    context.fillRect(i * width, 0, width, 14);
    drawMark(context, mark, i * width, 0, width, 14);
  });
  return canvas;
}

function fillLegend() {
  const legend = document.getElementById("legend");
  const entry = (colours, mark, text) => {
    const item = document.createElement("li");
    if (colours.length > 0) item.append(drawSwatch(colours, mark));
    item.append(text);
    legend.append(item);
  };
  const seen = new Set();
  const names = new Set();
  for (const timeline of timelines) {
    for (const row of timeline.rows) for (const lane of row.lanes) lane.op.forEach((op) => seen.add(op));
  }
  const widest = timelines.reduce((a, b) => (b.colours[0].length > a.colours[0].length ? b : a));
  const few = (list) => (list.length <= 4 ? list : [list[0], list[list.length >> 1], list[list.length - 1]]);
  ops.forEach((op, i) => {
    if (!seen.has(i) || names.has(op.name)) return;
    names.add(op.name);
    entry(few([...new Set(widest.colours[i])]), op.mark, op.name);
  });
  entry([shade], 0, "idle");
  if (widest.colours[0].length > 1) entry([], 0, "darker: the rank's later stages");
  const hasPairs = (timeline) => timeline.rows.some((row) => row.lanes.some((lane) => lane.pairs.size > 0));
  if (timelines.some(hasPairs)) entry([], 0, "underlined: overlapped");
}

const activeView = () => views.find((view) => view.selected || view.canvas === document.activeElement) ?? views[0];

function layOutAll() {
  for (const view of views) {
    view.layOut();
    view.draw();
  }
  document.getElementById("memory").checked = views.some((view) => view.geometry.memoryHeight > 0);
}

function stretch(factor) {
  settings.stretch = Math.min(8, Math.max(0.25, settings.stretch * factor));
  layOutAll();
}

function showMemory(shown) {
  settings.memory = shown;
  layOutAll();
}

function showCriticalPath(shown) {
  settings.criticalPath = shown;
  document.getElementById("critical").checked = shown;
  for (const view of views) view.draw("selection");
}

function goTo(view, text) {
  const place = findAction(view.timeline, text);
  if (!place) {
    document.getElementById("selected").textContent = `There is no action ${text}.`;
    return;
  }
  view.zoomTo(place);
  view.select(place);
}

function listenToTools() {
  const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
  on("fit", "click", () => activeView().show(0, activeView().length));
  on("closer", "click", () => activeView().zoom(0.6));
  on("farther", "click", () => activeView().zoom(1 / 0.6));
  on("taller", "click", () => stretch(1.25));
  on("flatter", "click", () => stretch(0.8));
  on("memory", "change", (event) => showMemory(event.target.checked));
  on("critical", "change", (event) => showCriticalPath(event.target.checked));
  on("search", "submit", (event) => {
    event.preventDefault();
    goTo(activeView(), document.getElementById("wanted").value);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "[") stretch(0.8);
    if (event.key === "]") stretch(1.25);
    if (event.key === "c") showCriticalPath(!settings.criticalPath);
    if (event.key === "m") showMemory(!document.getElementById("memory").checked);
  });
  window.addEventListener("resize", layOutAll);
  const print = (wide) => {
    for (const view of views) view.wide = wide;
    for (const view of views) {
      view.layOut();
      drawTimeline(view, true);
    }
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(undefined));
}

// "#1/3F7" is action 3F7 of the second timeline.
function followFragment() {
  const match = /^#(\d+)\/(\w+)$/.exec(location.hash);
  if (match && views[Number(match[1])]) goTo(views[Number(match[1])], match[2]);
}

function showTimelines() {
  document.getElementById("critical").parentElement.hidden = timelines.every((each) => each.criticalPath.length === 0);
  for (const timeline of timelines) views.push(new View(timeline));
  fillLegend();
  listenToTools();
  layOutAll();
  followFragment();
  window.addEventListener("hashchange", followFragment);
}

if (timelines.length > 0) showTimelines();
else for (const id of ["legend", "tools", "selected"]) document.getElementById(id).hidden = true;

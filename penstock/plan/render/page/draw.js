// Drawing one timeline on its canvas: rows of lanes with a memory curve under each, an axis on top.
// Bars too narrow to see are drawn by column, each op as high as its share of the time there.

const ink = "#1f2430";
const faded = "#5b6472";
const rule = "#c9cfd8";
const shade = "#eceef2";
const paper = "#ffffff";
const memoryFill = "#d3dae6";
const axisHeight = 24;
const barWidthMin = 2.5;  // In pixels; narrower bars go into columns.
const columnWidth = 2;
const font = (size, weight = "") => `${weight} ${size}px Helvetica, Arial, "Liberation Sans", sans-serif`;

// Steps of 1, 2 or 5 times a power of ten that are at least `pixels` apart.
function tickStep(scale, pixels) {
  const least = pixels / scale;
  const magnitude = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * magnitude).find((step) => step >= least * (1 - 1e-9));
}

function tickText(value, step) {
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return decimals > 6 ? numberText(value) : value.toFixed(decimals);
}

function drawAxis(view, context) {
  const { left, width } = view.geometry;
  const step = tickStep(view.scale, 70);
  context.fillStyle = paper;
  context.fillRect(0, 0, left + width, axisHeight);
  context.fillStyle = faded;
  context.font = font(11);
  context.textAlign = "right";
  context.fillText(view.timeline.unit ? `time, ${view.timeline.unit}` : "time", left - 10, 15);
  context.textAlign = "center";
  for (let n = Math.ceil(view.begin / step); n * step <= view.end; ++n) {
    const x = view.x(n * step);
    context.fillText(tickText(n * step, step), x, 15);
    context.fillRect(x - 0.5, axisHeight - 5, 1, 5);
  }
  context.fillStyle = rule;
  context.fillRect(left, axisHeight - 1, width, 1);
}

// How much of the lane's height each op fills in each column of `columnWidth` pixels.
class Columns {
  constructor(width) {
    this.count = Math.ceil(width / columnWidth);
    this.share = ops.map(() => undefined);
    this.used = false;
  }

  add(op, from, to) {
    this.used = true;
    const shares = (this.share[op] ??= new Float32Array(this.count + 1));
    const first = from / columnWidth;
    const last = Math.min(to / columnWidth, this.count);
    for (let column = Math.max(0, Math.floor(first)); column <= last; ++column) {
      shares[column] += Math.max(0, Math.min(last, column + 1) - Math.max(first, column));
    }
  }

  // Ops from the bottom up; neighbouring columns that are alike in one go.
  draw(context, left, top, height, colours) {
    const below = new Float32Array(this.count + 1);
    this.share.forEach((shares, op) => {
      if (!shares) return;
      context.fillStyle = colours[op][colours[op].length - 1];
      for (let column = 0, end; column <= this.count; column = end) {
        const from = below[column];
        const part = Math.min(shares[column], 1 - from);
        end = column + 1;
        while (end <= this.count && alike(shares[end], shares[column]) && alike(below[end], from)) ++end;
        if (part <= 0) continue;
        const x = left + column * columnWidth;
        context.fillRect(x, top + height * (1 - from - part), (end - column) * columnWidth, height * part);
      }
      for (let column = 0; column <= this.count; ++column) below[column] += shares[column];
    });
  }
}

const alike = (a, b) => Math.abs(a - b) < 0.02;

function drawMark(context, mark, x, y, width, height) {
  if (mark === 0 || height < 8 || width < 8) return;
  context.fillStyle = "rgba(255, 255, 255, 0.75)";
  context.fillRect(x, mark === 1 ? y + height - 4 : y + 2, width, 2);
}

// The microbatch's number where the longest would fit; where the longest action would, the action.
function drawBarText(view, context, lane, i, x, y, width, height) {
  const size = Math.min(12, height - 3);
  if (size < 7) return;
  const number = lane.microbatch[i] < 0 ? ops[lane.op[i]].code : String(lane.microbatch[i]);
  const fits = (letters) => letters * size * 0.6 + 4 <= width;
  if (!fits(view.timeline.numberLength)) return;
  const text = fits(view.timeline.nameLength) ? nameOf(lane, i) : number;
  context.font = font(size);
  context.fillStyle = view.timeline.inks[lane.op[i]][lane.shade[i]];
  context.fillText(text, x + width / 2, y + height / 2 + size * 0.36);
}

// Under both halves of an overlapped pair.
function drawPairLine(view, context, lane, i, y) {
  const { left, width } = view.geometry;
  const from = Math.max(view.x(lane.start[i]) + 1.5, left);
  const to = Math.min(view.x(lane.end[i + 1]) - 1.5, left + width);
  context.fillStyle = ink;
  if (to > from) context.fillRect(from, y + 0.5, to - from, 1.5);
}

function drawLane(view, context, lane, top, height) {
  const { left, width } = view.geometry;
  const { colours } = view.timeline;
  context.fillStyle = shade;
  context.fillRect(left, top, view.x(Math.min(view.timeline.end, view.end)) - left, height);
  const columns = new Columns(width);
  context.textAlign = "center";
  for (let i = firstIndex(lane.count, (k) => lane.end[k] > view.begin); i < lane.count; ++i) {
    if (lane.start[i] >= view.end) break;
    const from = Math.max(view.x(lane.start[i]), left);
    const to = Math.min(view.x(lane.end[i]), left + width);
    if ((lane.end[i] - lane.start[i]) * view.scale < barWidthMin) {
      columns.add(lane.op[i], from - left, to - left);
      continue;
    }
    const gap = Math.min(1, (to - from) / 8);
    context.fillStyle = colours[lane.op[i]][lane.shade[i]];
    context.fillRect(from + gap / 2, top, to - from - gap, height);
    drawMark(context, ops[lane.op[i]].mark, from + gap / 2, top, to - from - gap, height);
    drawBarText(view, context, lane, i, from, top, to - from, height);
    if (lane.pairs.has(i)) drawPairLine(view, context, lane, i, top + height);
  }
  if (columns.used) columns.draw(context, left, top, height, colours);
}

function drawMemory(view, context, row, top, height) {
  const { left, width } = view.geometry;
  const { time, memory } = row.memory;
  const most = view.timeline.memoryMax;
  if (time.length === 0 || most === 0) return;
  const y = (value) => top + height - (value / most) * (height - 1);
  context.beginPath();
  context.moveTo(left, y(memoryAt(row, view.begin)));
  let column = -1;
  let high = 0;
  for (let i = firstIndex(time.length, (k) => time[k] > view.begin); i < time.length; ++i) {
    if (time[i] > view.end) break;
    const x = view.x(time[i]);
    // Of the levels within one pixel the highest stays, so that no peak is lost.
    if (Math.floor(x) === column && memory[i] < high && i + 1 < time.length) continue;
    column = Math.floor(x);
    high = memory[i];
    context.lineTo(x, y(memory[i - 1] ?? 0));
    context.lineTo(x, y(memory[i]));
  }
  const right = Math.min(view.x(view.timeline.end), left + width);
  context.lineTo(right, y(memoryAt(row, Math.min(view.end, view.timeline.end))));
  context.strokeStyle = faded;
  context.lineWidth = 1;
  context.stroke();
  context.lineTo(right, top + height);
  context.lineTo(left, top + height);
  context.fillStyle = memoryFill;
  context.globalCompositeOperation = "destination-over";
  context.fill();
  context.globalCompositeOperation = "source-over";
}

function stagesText(stages) {
  const shown = stages.length > 4 ? [stages[0], stages[1], "...", stages[stages.length - 1]] : stages;
  return (stages.length === 1 ? "stage " : "stages ") + shown.join(", ");
}

// "stages 0, 15, peak 16"
function noteOf(row) {
  return stagesText(row.stages) + (row.memory.peak > 0 ? `, peak ${numberText(row.memory.peak)}` : "");
}

function drawRowLabels(view, context, row, top) {
  const { left, laneHeight, rowHeight } = view.geometry;
  const size = Math.max(8, Math.min(13, laneHeight + 1));
  context.textAlign = "right";
  context.fillStyle = ink;
  context.font = font(size, "bold");
  context.fillText(row.name, left - 10, top + laneHeight / 2 + size * 0.36);
  if (rowHeight < rowHeightWithMemory) return;
  context.fillStyle = faded;
  context.font = font(10);
  context.fillText(noteOf(row), left - 10, top + laneHeight + Math.min(12, rowHeight - laneHeight - 3));
}

function drawSelection(view, context) {
  const place = view.selected ?? view.hovered;
  if (!place) return;
  const box = view.boxOf(place);
  context.strokeStyle = ink;
  context.lineWidth = 2.5;
  context.strokeRect(box.x, box.y - 1, box.width, box.height + 2);
  const cause = laneAt(view.timeline, place).waits.get(place.bar);
  if (!cause) return;
  const from = view.boxOf(cause);
  context.setLineDash([4, 3]);
  context.strokeRect(from.x, from.y - 1, from.width, from.height + 2);
  context.beginPath();
  context.moveTo(from.x + from.width, from.y + from.height / 2);
  context.lineTo(box.x, box.y + box.height / 2);
  context.lineWidth = 1.5;
  context.stroke();
  context.setLineDash([]);
}

// Outlines what the rest of the ranks do with the selected action's microbatch.
function drawFollowed(view, context) {
  const followed = view.followedMicrobatch();
  if (followed === undefined) return;
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  for (const row of view.visibleRows()) {
    const { lanes: [lane] } = row;
    for (let i = firstIndex(lane.count, (k) => lane.end[k] > view.begin); i < lane.count; ++i) {
      if (lane.start[i] >= view.end) break;
      if (lane.microbatch[i] !== followed) continue;
      const box = view.boxOf({ row: row.index, lane: 0, bar: i });
      context.strokeRect(box.x + 0.75, box.y + 0.75, box.width - 1.5, box.height - 1.5);
    }
  }
}

// The bars that the end is made of, joined from one to the next.
function drawCriticalPath(view, context) {
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.beginPath();
  let before;
  for (const place of view.timeline.criticalPath) {
    const lane = laneAt(view.timeline, place);
    const isOutside = lane.end[place.bar] < view.begin || lane.start[place.bar] > view.end;
    if (isOutside && !before) continue;
    const box = view.boxOf(place);
    const y = box.y + box.height - 2;
    if (before) context.lineTo(box.x, y);
    else context.moveTo(box.x, y);
    context.lineTo(box.x + box.width, y);
    before = place;
    if (lane.start[place.bar] > view.end) break;
  }
  context.stroke();
}

function drawRows(view, context) {
  const { left, width, laneHeight, sideHeight, memoryHeight, height } = view.geometry;
  context.clearRect(0, 0, left + width + 12, height);
  for (const row of view.visibleRows()) {
    const top = view.rowTop(row.index);
    let y = top;
    row.lanes.forEach((lane, l) => {
      drawLane(view, context, lane, y, l === 0 ? laneHeight : sideHeight);
      y += (l === 0 ? laneHeight : sideHeight) + 1;
    });
    if (memoryHeight > 0) drawMemory(view, context, row, y + 1, memoryHeight);
    drawRowLabels(view, context, row, top);
  }
  drawAxis(view, context);
}

// The rows are kept as a picture, so that what is pointed at can change quickly.
function drawTimeline(view, stale) {
  const { left, width, height } = view.geometry;
  if (stale) {
    view.rows.width = view.canvas.width;
    view.rows.height = view.canvas.height;
    const rows = view.rows.getContext("2d");
    rows.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    drawRows(view, rows);
  }
  const context = view.canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, view.canvas.width, view.canvas.height);
  context.drawImage(view.rows, 0, 0);
  context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  context.save();
  context.beginPath();
  context.rect(left, axisHeight, width, height);
  context.clip();
  if (settings.criticalPath) drawCriticalPath(view, context);
  drawFollowed(view, context);
  drawSelection(view, context);
  context.restore();
}

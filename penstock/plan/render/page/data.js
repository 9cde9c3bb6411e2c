"use strict";
// The embedded timelines, as arrays that can be drawn and searched; what they say in words.

const data = JSON.parse(document.getElementById("data").textContent);
const ops = data.ops;  // {code, name, mark}: in the order of their numbers.
const timelines = data.timelines.map(readTimeline);

function readTimeline(source, index) {
  const timeline = { ...source, index };
  timeline.rows = source.rows.map((row, r) => ({
    ...row,
    index: r,
    lanes: row.lanes.map((lane, l) => readLane(lane, row, r, l)),
    memory: readLevels(row.memory),
  }));
  timeline.criticalPath = [];
  for (let i = 0; i < source.criticalPath.length; i += 3) {
    const [row, lane, bar] = source.criticalPath.slice(i, i + 3);
    timeline.criticalPath.push({ row, lane, bar });
  }
  measureNames(timeline);
  timeline.lanes = Math.max(1, ...timeline.rows.map((row) => row.lanes.length));
  timeline.memoryMax = Math.max(0, ...timeline.rows.map((row) => row.memory.peak));
  return timeline;
}

// How many letters the longest microbatch and the longest compute action have.
function measureNames(timeline) {
  const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
  const stage = largest(timeline.rows.map((row) => largest(row.stages)));
  const microbatch = largest(timeline.rows.map((row) => largest(row.lanes[0].microbatch)));
  timeline.numberLength = `${microbatch}`.length;
  timeline.nameLength = `${stage}F${microbatch}`.length;
}

function readLane(lane, row, rowIndex, laneIndex) {
  const start = Float64Array.from(lane.start);
  const waits = new Map();
  for (let i = 0; i < lane.waits.length; i += 4) {
    waits.set(lane.waits[i], { row: lane.waits[i + 1], lane: lane.waits[i + 2], bar: lane.waits[i + 3] });
  }
  return {
    name: lane.name,
    row: rowIndex,
    index: laneIndex,
    count: start.length,
    op: Uint8Array.from(lane.op, (letter) => letter.charCodeAt(0) - 97),
    shade: Int32Array.from(lane.chunk),
    stages: row.stages,
    microbatch: Int32Array.from(lane.microbatch),  // -1: of all.
    start,
    end: start.map((time, i) => time + lane.length[i]),
    names: lane.names,  // Of the parts of actions that its bars are; absent: they are actions.
    named: lane.named,
    pairs: new Set(lane.pairs),
    waits,
  };
}

function readLevels(flat) {
  const time = Float64Array.from({ length: flat.length / 2 }, (_, i) => flat[2 * i]);
  const memory = Float64Array.from({ length: flat.length / 2 }, (_, i) => flat[2 * i + 1]);
  return { time, memory, peak: memory.reduce((peak, value) => Math.max(peak, value), 0) };
}

// The first index in [0, count) for which `isBehind` holds; it holds for all later ones, too.
function firstIndex(count, isBehind) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBehind(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function memoryAt(row, time) {
  const behind = firstIndex(row.memory.time.length, (i) => row.memory.time[i] > time);
  return behind === 0 ? 0 : row.memory.memory[behind - 1];
}

const laneAt = (timeline, place) => timeline.rows[place.row].lanes[place.lane];
const samePlace = (a, b) => a && b && a.row === b.row && a.lane === b.lane && a.bar === b.bar;

function actionOf(lane, i) {
  const microbatch = lane.microbatch[i];
  return lane.stages[lane.shade[i]] + ops[lane.op[i]].code + (microbatch < 0 ? "" : microbatch);
}

// Of a part of an action, what it is.
function nameOf(lane, i) {
  return lane.names ? lane.names[lane.named[i]] : actionOf(lane, i);
}

// Six significant digits, as the pictures have; large numbers keep their digits before the point.
function numberText(value) {
  const digits = Math.abs(value) >= 1e6 ? value.toFixed(0) : String(Number(value.toPrecision(6)));
  return digits;
}

function timeText(timeline, value) {
  return numberText(value) + (timeline.unit ? " " + timeline.unit : "");
}

function waitText(timeline, lane, i) {
  const before = i > 0 ? lane.end[i - 1] : 0;
  if (lane.start[i] - before <= timeline.end * 1e-9) return "did not wait";
  const idle = timeText(timeline, lane.start[i] - before);
  const place = lane.waits.get(i);
  if (!place) return `idle for ${idle} before it`;
  const other = laneAt(timeline, place);
  const where = place.row === lane.row ? "" : ` of ${timeline.rows[place.row].name}`;
  return `waited ${idle} for ${nameOf(other, place.bar)}${where}, ` +
    `which ended at ${timeText(timeline, other.end[place.bar])}`;
}

// By name, made when first asked for.
function placesOf(timeline) {
  if (timeline.places) return timeline.places;
  timeline.places = new Map();
  for (const row of timeline.rows) {
    for (const lane of row.lanes) {
      for (let i = 0; i < lane.count; ++i) {
        timeline.places.set(nameOf(lane, i), { row: row.index, lane: lane.index, bar: i });
      }
    }
  }
  return timeline.places;
}

const moreText = (timeline, value, more, less) =>
  `${timeText(timeline, Math.abs(value))} ${value < 0 ? less : more}`;

// How the same action of the page's other timelines differs from this one.
function comparisons(timeline, lane, i) {
  const lines = [];
  for (const other of timelines) {
    if (other === timeline || other.unit !== timeline.unit) continue;
    const place = placesOf(other).get(nameOf(lane, i));
    if (!place) continue;
    const there = laneAt(other, place);
    const start = there.start[place.bar] - lane.start[i];
    const length = there.end[place.bar] - there.start[place.bar] - (lane.end[i] - lane.start[i]);
    lines.push(`${other.title}: starts ${moreText(timeline, start, "later", "earlier")}, ` +
      `takes ${moreText(timeline, length, "more", "less")}`);
  }
  return lines;
}

// What is known of a bar, a fact a line.
function describe(timeline, place) {
  const lane = laneAt(timeline, place);
  const row = timeline.rows[place.row];
  const i = place.bar;
  const microbatch = lane.microbatch[i] < 0 ? "" : ` of microbatch ${lane.microbatch[i]}`;
  const action = `${actionOf(lane, i)}: ${ops[lane.op[i]].name}${microbatch} on stage ${lane.stages[lane.shade[i]]}`;
  const lines = [
    lane.names ? `${nameOf(lane, i)}, in ${action}` : action,
    `${row.name}, ${timeText(timeline, lane.start[i])} to ${timeText(timeline, lane.end[i])}, ` +
      `takes ${timeText(timeline, lane.end[i] - lane.start[i])}`,
  ];
  if (lane.names) return lines;
  lines.push(waitText(timeline, lane, i));
  if (lane.pairs.has(i)) lines.push(`overlapped with ${nameOf(lane, i + 1)}`);
  if (lane.pairs.has(i - 1)) lines.push(`overlapped with ${nameOf(lane, i - 1)}`);
  lines.push(...comparisons(timeline, lane, i));
  if (row.memory.time.length > 0) {
    const held = memoryAt(row, lane.start[i]);
    lines.push(`memory ${numberText(held)} of at most ${numberText(row.memory.peak)}`);
  }
  return lines;
}

// The place of the action with that text; undefined when there is none.
function findAction(timeline, text) {
  const wanted = text.trim().toUpperCase();
  for (const row of timeline.rows) {
    for (const lane of row.lanes) {
      for (let i = 0; i < lane.count; ++i) {
        if (nameOf(lane, i) === wanted) return { row: row.index, lane: lane.index, bar: i };
      }
    }
  }
  return undefined;
}

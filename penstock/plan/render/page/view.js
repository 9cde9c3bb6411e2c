// One timeline's place on the page: what is visible of it, and what the user does there.

const views = [];
// Of all views; memory is undefined until the user says: it is shown where there is room.
const settings = { memory: undefined, stretch: 1, criticalPath: false };
const rowHeightMin = 9;  // In pixels.
const rowHeightWithMemory = 26;

class View {
  constructor(timeline) {
    this.timeline = timeline;
    this.begin = 0;
    this.end = this.length;
    this.selected = undefined;
    this.hovered = undefined;
    this.wide = undefined;  // While printing: as high as all rows.
    this.rows = document.createElement("canvas");
    const section = document.createElement("section");
    const title = document.createElement("h2");
    title.textContent = timeline.title;
    title.hidden = timelines.length === 1;
    const notes = document.createElement("p");
    notes.className = "notes";
    notes.textContent = timeline.notes.join(" · ");
    this.frame = document.createElement("div");
    this.frame.className = "view";
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `${timeline.title}: ${timeline.notes.join(", ")}`);
    this.spacer = document.createElement("div");
    this.frame.append(this.canvas, this.spacer);
    section.append(title, notes, this.frame);
    document.getElementById("timelines").append(section);
    this.listen();
  }

  // Of the longest timeline in this one's unit: side by side, they have one scale.
  get length() {
    const ends = timelines.filter((each) => each.unit === this.timeline.unit).map((each) => each.end);
    return Math.max(...ends) || 1;
  }
  get scale() { return this.geometry.width / (this.end - this.begin); }
  x(time) { return this.geometry.left + (time - this.begin) * this.scale; }
  timeAt(x) { return this.begin + (x - this.geometry.left) / this.scale; }
  scrolled() { return this.wide ? 0 : this.frame.scrollTop; }
  rowTop(row) { return axisHeight + 4 + row * this.geometry.rowHeight - this.scrolled(); }

  visibleRows() {
    const { rowHeight, height } = this.geometry;
    const first = Math.max(0, Math.floor((this.scrolled() - 4) / rowHeight));
    return this.timeline.rows.slice(first, first + Math.ceil(height / rowHeight) + 1);
  }

  followedMicrobatch() {
    const place = this.selected ?? this.hovered;
    if (!place) return undefined;
    const microbatch = laneAt(this.timeline, place).microbatch[place.bar];
    return microbatch < 0 ? undefined : microbatch;
  }

  boxOf(place) {
    const lane = laneAt(this.timeline, place);
    const { laneHeight, sideHeight } = this.geometry;
    const x = this.x(lane.start[place.bar]);
    const below = place.lane === 0 ? 0 : laneHeight + 1 + (place.lane - 1) * (sideHeight + 1);
    return {
      x,
      y: this.rowTop(place.row) + below,
      width: Math.max(3, this.x(lane.end[place.bar]) - x),
      height: place.lane === 0 ? laneHeight : sideHeight,
    };
  }

  // Rows as tall as the window allows, within limits; beyond, the frame scrolls.
  layOut() {
    const { rows, lanes } = this.timeline;
    const room = Math.max(240, window.innerHeight * (timelines.length > 1 ? 0.45 : 0.74));
    const share = (room - axisHeight - 8) / rows.length;
    const hasMemory = this.timeline.memoryMax > 0 && (settings.memory ?? share >= rowHeightWithMemory);
    const least = hasMemory ? rowHeightWithMemory : rowHeightMin;
    const rowHeight = Math.min(56, Math.max(least, share)) * settings.stretch;
    const gap = Math.max(2, rowHeight * 0.16);
    const memoryHeight = hasMemory ? (rowHeight - gap) * 0.42 : 0;
    const lanesHeight = rowHeight - gap - memoryHeight - lanes;
    const laneHeight = Math.floor(lanesHeight / (1 + 0.4 * (lanes - 1)));
    const sideHeight = Math.max(2, Math.floor(laneHeight * 0.4));
    const left = this.labelWidth(rowHeight < rowHeightWithMemory);
    const content = axisHeight + 8 + rows.length * rowHeight;
    const height = Math.floor(this.wide ? content : Math.min(content, room));
    this.frame.style.height = `${height + 2}px`;
    this.spacer.style.height = `${content - height}px`;
    const inner = this.frame.clientWidth;
    this.geometry = {
      left, width: Math.max(50, inner - left - 12), rowHeight, laneHeight, sideHeight, memoryHeight, height,
    };
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.style.width = `${inner}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(inner * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
  }

  labelWidth(isTight) {
    const context = this.canvas.getContext("2d");
    const widths = this.timeline.rows.map((row) => {
      context.font = font(13, "bold");
      const name = context.measureText(row.name).width;
      context.font = font(10);
      return isTight ? name : Math.max(name, context.measureText(noteOf(row)).width);
    });
    return widths.reduce((most, width) => Math.max(most, width), 50) + 20;
  }

  // All of it, or where `what` is "selection" only that.
  draw(what) {
    this.stale ||= what !== "selection";
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      drawTimeline(this, this.stale);
      this.stale = false;
    });
  }

  // Shows [begin, end], moved and cut to what there is; views of one unit move together.
  show(begin, end) {
    const width = Math.min(Math.max(end - begin, this.length * 1e-6), this.length);
    const from = Math.min(Math.max(begin, 0), this.length - width);
    for (const view of views) {
      if (view.timeline.unit !== this.timeline.unit) continue;
      view.begin = from;
      view.end = from + width;
      view.draw();
    }
  }

  zoom(factor, time = (this.begin + this.end) / 2) {
    this.show(time - (time - this.begin) * factor, time + (this.end - time) * factor);
  }

  move(share) {
    const shift = (this.end - this.begin) * share;
    this.show(this.begin + shift, this.end + shift);
  }

  placeAt(x, y) {
    const { left, rowHeight, laneHeight, sideHeight } = this.geometry;
    if (x < left || y < axisHeight) return undefined;
    const r = Math.floor((y + this.scrolled() - axisHeight - 4) / rowHeight);
    const row = this.timeline.rows[r];
    if (!row) return undefined;
    const below = y - this.rowTop(r);
    const l = below < laneHeight ? 0 : 1 + Math.floor((below - laneHeight - 1) / (sideHeight + 1));
    const lane = row.lanes[l];
    if (!lane) return undefined;
    return this.barAt(lane, this.timeAt(x));
  }

  barAt(lane, time) {
    const i = firstIndex(lane.count, (k) => lane.end[k] > time);
    if (i === lane.count || lane.start[i] > time) return undefined;
    return { row: lane.row, lane: lane.index, bar: i };
  }

  select(place) {
    for (const view of views) {
      if (view !== this && view.selected) {
        view.selected = undefined;
        view.draw("selection");
      }
    }
    this.selected = place;
    document.getElementById("selected").textContent =
      place ? describe(this.timeline, place).join(" · ") : "";
    if (place) {
      this.reveal(place);
      const lane = laneAt(this.timeline, place);
      history.replaceState(null, "", `#${this.timeline.index}/${nameOf(lane, place.bar)}`);
    }
    this.draw("selection");
  }

  // Moves, without zooming, so that the bar is visible.
  reveal(place) {
    const lane = laneAt(this.timeline, place);
    const width = this.end - this.begin;
    if (lane.start[place.bar] < this.begin || lane.end[place.bar] > this.end) {
      const middle = (lane.start[place.bar] + lane.end[place.bar]) / 2;
      this.show(middle - width / 2, middle + width / 2);
    }
    const top = place.row * this.geometry.rowHeight;
    const visible = this.geometry.height - axisHeight - this.geometry.rowHeight - 8;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    if (top > this.frame.scrollTop + visible) this.frame.scrollTop = top - visible;
  }

  // Shows the bar large enough to be read.
  zoomTo(place) {
    const lane = laneAt(this.timeline, place);
    const length = Math.max(lane.end[place.bar] - lane.start[place.bar], this.length * 1e-6);
    if (length * this.scale < 20) {
      const width = (length * this.geometry.width) / 30;
      const middle = (lane.start[place.bar] + lane.end[place.bar]) / 2;
      this.show(middle - width / 2, middle + width / 2);
    }
  }

  step(by) {
    if (!this.selected) return this.selectFirst();
    const bar = this.selected.bar + by;
    if (bar < 0 || bar >= laneAt(this.timeline, this.selected).count) return undefined;
    return this.select({ ...this.selected, bar });
  }

  stepRow(by) {
    if (!this.selected) return this.selectFirst();
    const from = laneAt(this.timeline, this.selected);
    const time = (from.start[this.selected.bar] + from.end[this.selected.bar]) / 2;
    const row = this.timeline.rows[this.selected.row + by];
    const lane = row && (row.lanes[this.selected.lane] ?? row.lanes[0]);
    if (!lane || lane.count === 0) return undefined;
    const i = Math.min(firstIndex(lane.count, (k) => lane.end[k] > time), lane.count - 1);
    return this.select({ row: row.index, lane: lane.index, bar: i });
  }

  selectFirst() {
    const row = this.timeline.rows.find((each) => each.lanes[0].count > 0);
    if (!row) return undefined;
    const i = firstIndex(row.lanes[0].count, (k) => row.lanes[0].end[k] > this.begin);
    return this.select({ row: row.index, lane: 0, bar: Math.min(i, row.lanes[0].count - 1) });
  }

  follow() {
    const cause = this.selected && laneAt(this.timeline, this.selected).waits.get(this.selected.bar);
    if (cause) this.select(cause);
  }

  key(event) {
    const actions = {
      ArrowLeft: () => (event.shiftKey ? this.move(-0.2) : this.step(-1)),
      ArrowRight: () => (event.shiftKey ? this.move(0.2) : this.step(1)),
      ArrowUp: () => this.stepRow(-1),
      ArrowDown: () => this.stepRow(1),
      Enter: () => this.follow(),
      Escape: () => this.select(undefined),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.show(0, this.length),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  wheel(event) {
    const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.004))), this.timeAt(event.offsetX));
    } else if (sideways !== 0) {
      event.preventDefault();
      this.move(sideways / this.geometry.width);
    }
  }

  listen() {
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.frame.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.hover(undefined));
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event.offsetX)));
  }

  press(event) {
    if (event.button !== 0) return;
    const from = { x: event.clientX, begin: this.begin, end: this.end };
    let moved = false;
    const drag = (move) => {
      const shift = (from.x - move.clientX) / this.scale;
      moved ||= Math.abs(from.x - move.clientX) > 3;
      if (!moved) return;
      this.canvas.classList.add("moving");
      this.show(from.begin + shift, from.end + shift);
    };
    const release = (up) => {
      this.canvas.classList.remove("moving");
      this.canvas.removeEventListener("pointermove", drag);
      if (!moved) this.select(this.placeAt(up.offsetX, up.offsetY));
    };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.addEventListener("pointermove", drag);
    this.canvas.addEventListener("pointerup", release, { once: true });
    this.canvas.addEventListener("pointercancel", release, { once: true });
  }

  point(event) {
    if (event.buttons !== 0) return this.hover(undefined);
    return this.hover(this.placeAt(event.offsetX, event.offsetY), event);
  }

  hover(place, event) {
    const tip = document.getElementById("tip");
    tip.hidden = !place;
    if (place) {
      tip.textContent = describe(this.timeline, place).join("\n");
      const { width, height } = tip.getBoundingClientRect();
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - width - 8)}px`;
      const below = event.clientY + 18;
      tip.style.top = `${below + height > window.innerHeight ? event.clientY - height - 10 : below}px`;
    }
    if (samePlace(place, this.hovered) || (!place && !this.hovered)) return;
    this.hovered = place;
    this.draw("selection");
  }
}

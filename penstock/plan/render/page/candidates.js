// Layouts on the page of `penstock plan`: points, bars and rows of one candidate go together.

const candidates = [...document.querySelectorAll("circle.candidate")].map((point, i) => ({
  point,
  label: point.querySelector("title")?.textContent ?? "",
  row: document.querySelectorAll(".table tbody tr")[i],
  bars: ["time-", "memory-"].map((prefix) => document.getElementById(`${prefix}${i + 1}`)),
}));

const partsOf = (bar) => [...bar.querySelectorAll("rect title")].map((title) => title.textContent);

function choose(candidate) {
  for (const each of candidates) {
    const isOther = candidate !== undefined && each !== candidate;
    for (const part of [each.point, each.row, ...each.bars]) {
      part?.classList.toggle("chosen", each === candidate);
      part?.classList.toggle("other", isOther);
    }
  }
  const lines = candidate ? [candidate.label, ...candidate.bars.map((bar) => partsOf(bar).join("; "))] : [];
  document.getElementById("candidate").textContent = lines.join("\n");
}

// Each word of "tensor 8, ZeRO 1" has to begin a part of the label; one with a number, to be it.
function filterCandidates(text) {
  const wanted = text.toLowerCase().split(",").map((word) => word.trim()).filter((word) => word !== "");
  for (const each of candidates) {
    const words = each.label.toLowerCase().split(/[:,]| x /).map((word) => word.trim());
    const isAt = (word) => words.some((other) => (/\d$/.test(word) ? other === word : other.startsWith(word)));
    const isShown = wanted.every(isAt);
    for (const part of [each.point, each.row, ...each.bars]) {
      if (part) part.style.display = isShown ? "" : "none";
    }
  }
}

function showCandidates() {
  const tools = document.createElement("p");
  tools.className = "notes";
  tools.innerHTML =
    '<label>Only <input id="only" size="30" placeholder="tensor 8, ZeRO 1" spellcheck="false"></label>' +
    '<output id="candidate" aria-live="polite"></output>';
  document.querySelector(".figure").append(tools);
  document.getElementById("only").addEventListener("input", (event) => filterCandidates(event.target.value));
  for (const each of candidates) {
    for (const part of [each.point, each.row, ...each.bars]) {
      part?.addEventListener("click", () => choose(each));
    }
  }
}

if (candidates.length > 0) showCandidates();

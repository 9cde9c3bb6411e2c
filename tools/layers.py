"""The layers of the tree, their wings, and what each may use: read from CMakeLists.txt."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass
class Layer:
    torch: bool
    uses: list[str]  # What it uses hands on to whoever uses it.
    private_uses: list[str]
    wing: str = ""


@dataclass
class Layers:
    """The layers in the order of CMakeLists.txt, and the public targets made of them."""

    layers: dict[str, Layer] = field(default_factory=dict)
    public: dict[str, list[str]] = field(default_factory=dict)

    def reach(self, names: list[str]) -> set[str]:
        """The layers among `names` and all that they use, directly or not."""
        reached: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in reached:
                continue
            if name in self.layers:
                reached.add(name)
                todo += self.layers[name].uses
            else:
                todo += self.public.get(name, [])
        return reached

    def allowed(self, name: str) -> set[str]:
        return self.reach([name, *self.layers[name].private_uses])

    def owner(self, path: str) -> str:
        """The layer that a file is of, or a header as it is included; "cli", or "".

        Those of a wing are in folders of penstock/WING, public headers in include/penstock/LAYER,
        tests in tests/LAYER.
        """
        parts = PurePosixPath(path.removeprefix("include/")).parts
        if len(parts) < 3 or parts[0] not in ("penstock", "tests"):
            return ""
        inner = self.layers.get(parts[2]) if len(parts) > 3 else None
        if parts[0] == "penstock" and inner and inner.wing == parts[1]:
            return parts[2]
        return parts[1] if parts[1] in self.layers or parts[1] == "cli" else ""

    def folder(self, name: str) -> str:
        """The folder of a layer, or of cli."""
        wing = self.layers[name].wing if name in self.layers else ""
        return f"penstock/{wing}/{name}/" if wing not in ("", name) else f"penstock/{name}/"

    def below_torch_line(self, name: str) -> bool:
        return name in self.layers and self.layers[name].torch


def read_layers(text: str) -> tuple[Layers, list[Finding]]:
    """Parses the calls of penstock_layer and penstock_public (cmake/layers.cmake)."""
    result = Layers()
    findings = []
    uncommented = re.sub(r"#[^\n]*", "", text)
    wing = ""
    for call in re.finditer(r"\bpenstock_(wing|layer|public)\s*\(([^)]*)\)", uncommented):
        line = uncommented.count("\n", 0, call.start()) + 1
        name, *words = call[2].split()
        if call[1] == "wing":
            wing = name
            continue
        if call[1] == "public":
            result.public[name] = words
            continue
        by_keyword: dict[str, list[str]] = {"TORCH": [], "USES": [], "PRIVATE_USES": []}
        keyword = "TORCH"
        for word in words:
            if word in by_keyword:
                keyword = word
            elif "::" not in word:
                by_keyword[keyword].append(word)
        used_layers = by_keyword["USES"] + by_keyword["PRIVATE_USES"]
        for used in used_layers:
            if used not in result.layers:
                findings.append(
                    Finding(
                        "CMakeLists.txt",
                        line,
                        f"layer {name} uses {used}, which is no layer listed before it",
                    )
                )
        torch = "TORCH" in words
        below = [used for used in used_layers if result.below_torch_line(used)]
        if below and not torch:
            findings.append(
                Finding(
                    "CMakeLists.txt",
                    line,
                    f"layer {name} is above the torch line and uses {below[0]}, which is below it",
                )
            )
        result.layers[name] = Layer(torch, by_keyword["USES"], by_keyword["PRIVATE_USES"], wing)
    return result, findings

#!/usr/bin/env python3
"""Writes short chats that are made up, to train on and to validate with: JSON lines of messages.

Usage: make_chats.py TRAIN.jsonl HELD_OUT.jsonl [COUNT].  The same files on every machine.
The answers have a form of their own, which a model learns in a few hundred steps.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

WORDS = ["river", "mill", "wheel", "gate", "stone", "water", "bridge", "sluice", "valve", "pipe"]
PLACES = ["Alder", "Birch", "Cedar", "Elm", "Hazel", "Linden", "Maple", "Oak", "Rowan", "Willow"]


def sum_of_two(draw: random.Random) -> tuple[str, str]:
    a, b = draw.randint(2, 60), draw.randint(2, 60)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}."


def order(draw: random.Random) -> tuple[str, str]:
    words = draw.sample(WORDS, 3)
    return f"Sort these words: {', '.join(words)}.", f"In order: {', '.join(sorted(words))}."


def opening(draw: random.Random) -> tuple[str, str]:
    place = draw.choice(PLACES)
    hour = 6 + PLACES.index(place)
    return f"When does the {place} gate open?", f"The {place} gate opens at {hour} o'clock."


def chat(draw: random.Random) -> dict:
    messages = []
    for make in draw.sample((sum_of_two, order, opening), draw.randint(1, 2)):
        question, answer = make(draw)
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return {"messages": messages}


def main(train: str, held_out: str, count: str = "2000") -> None:
    draw = random.Random(20)
    chats = [json.dumps(chat(draw)) + "\n" for _ in range(int(count))]
    last = len(chats) // 10
    Path(train).write_text("".join(chats[:-last]))
    Path(held_out).write_text("".join(chats[-last:]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Text to token files: `python -m penstock.tokenize --tokenizer DIR TEXT... -o corpus.bin`.

A corpus is what `penstock train` reads by data.path: plain tokens in PATH.bin (uint16, or uint32
for a vocabulary above 65536), what made them in PATH.bin.json, and, where some tokens do not count
in the loss, PATH.bin.mask.  docs/data.md describes them.  Needs the package tokenizers; chats need
transformers, too.
"""

from penstock.tokenize._command import main

__all__ = ["main"]

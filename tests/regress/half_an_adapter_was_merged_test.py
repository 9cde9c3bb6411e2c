"""`penstock checkpoint merge` took adapters of which half the matrices were missing, added none,
and said so as if it were done.  It lost their chat template, and took the base model's card.
"""

import json
import struct

from fine_tuning import FineTuning
from model_folders import read_safetensors


def write_safetensors(path, tensors):
    head, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body)] * 2}
        body += data
        head[name]["data_offsets"][1] = len(body)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class HalfAnAdapterWasMerged(FineTuning):
    def adapters(self):
        config = self.tuning(data={"path": self.corpus("chats")}, run={"save": "adapters"})
        self.penstock("train", config, "--run", "r")
        return self.folder / "adapters"

    def merge(self, to="merged", code=0):
        return self.penstock("checkpoint", "merge", "adapters", "model", to, code=code)

    def test_it_is_refused(self):
        file = self.adapters() / "adapter_model.safetensors"
        tensors = read_safetensors(file)
        for kept, missing in (("lora_A", "lora_B"), ("lora_B", "lora_A")):
            write_safetensors(file, {k: v for k, v in tensors.items() if kept in k})
            result = self.merge(f"no_{missing}", code=2)
            self.assertIn(f'q_proj in "adapters" has no {missing}', result.err)
            self.assertFalse((self.folder / f"no_{missing}/config.json").exists())
        write_safetensors(file, {})
        self.assertIn("has no tensor of an adapter", self.merge("none", code=2).err)

    def test_what_was_trained_with_goes_along(self):
        (self.model / "README.md").write_text("---\nlicense: mit\n---\n# The base\n")
        for name, text in (("tokenizer.json", "{}"), ("chat_template.jinja", "of the base")):
            (self.model / name).write_text(text)
        adapters = self.adapters()
        (adapters / "chat_template.jinja").write_text("of the adapters")
        self.merge()
        merged = self.folder / "merged"
        self.assertEqual((merged / "chat_template.jinja").read_text(), "of the adapters")
        card = (merged / "README.md").read_text()
        self.assertIn("license: mit", card)
        self.assertIn("model with the adapters adapters", card)
        self.assertNotIn("The base", card)

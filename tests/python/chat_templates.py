"""Chat templates as thirteen families of models have them, written anew, with tokenizers.

Each says with {% generation %} what its model writes: what follows the generation prompt, up to the
token that ends the turn.  unmarked() is the template without these marks, as models have them.
"""

import json
import re
from dataclasses import dataclass

import tokenizers

BYTES = "bytes"
PIECES = "pieces"  # As SentencePiece: spaces are letters, and a text begins with one.


@dataclass(frozen=True)
class Family:
    """A template, the tokens that it needs, and what chats it takes."""

    template: str
    specials: tuple[str, ...]
    eos: str
    bos: str | None = None
    kind: str = BYTES
    has_system: bool = True
    begins_with_assistant: bool = False
    thinks: bool = False  # Takes apart "<think>...</think>".
    thinks_apart: bool = False  # Takes a key "thinking" of the last message.
    prompts: bool = True  # Knows add_generation_prompt.


def _answer(text):
    return "{% generation %}{{ " + text + " }}{% endgeneration %}"


def _prompt(text):
    return "{% if add_generation_prompt %}{{ '" + text + "' }}{% endif %}"


def _turns(others, answer, before="", behind=""):
    return (
        before + "{% for m in messages %}{% if m['role'] == 'assistant' %}" + answer + "{% else %}"
        "{{ " + others + " }}{% endif %}{% endfor %}" + behind
    )


_NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
_CHATML = "'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'"
_LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set s = '<<SYS>>\\n' + messages[0]['content'] + "
    "'\\n<</SYS>>\\n\\n' %}{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = "
    "messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0)"
    " %}{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (s if loop.first else '') + m['content'].strip() + ' [/INST]' }}"
    "{% else %}" + _answer("' ' + m['content'].strip() + ' ' + eos_token") + "{% endif %}"
    "{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}"
    + _answer("' ' + m['content'] + eos_token")
    + "{% endif %}{% endfor %}"
)
_QWEN_3 = (  # Thoughts stay behind the last question alone.
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% set said = m['content'] %}"
    "{% set thought = '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    + _answer("'<think>\\n' + thought + '\\n</think>\\n\\n' + said + '<|im_end|>'")
    + "{% else %}"
    + _answer("said + '<|im_end|>'")
    + "{% endif %}{{ '\\n' }}{% else %}{{ "
    + _CHATML
    + " }}{% endif %}{% endfor %}"
    + _prompt("<|im_start|>assistant\\n")
)
# The same, where the prompt begins a thought, which earlier turns have not.
_THOUGHTFUL = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
    "{% if loop.last %}{{ '<think>\\n' }}"
    + _answer("'\\n</think>\\n\\n' + m['content'] + '<|im_end|>'")
    + "{% else %}"
    + _answer("m['content'] + '<|im_end|>'")
    + "{% endif %}{{ '\\n' }}{% else %}{{ "
    + _CHATML
    + " }}{% endif %}{% endfor %}"
    + _prompt("<|im_start|>assistant\\n<think>\\n")
)
_DEEPSEEK_R1 = (  # Thoughts are left out, and the prompt begins one.
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}{% else %}{{ '<|Assistant|>' }}"
    + _answer("m['content'].split('</think>')[-1] + eos_token")
    + "{% endif %}{% endfor %}"
    + _prompt("<|Assistant|><think>\\n")
)
_GPT_OSS = (  # The last answer ends with another token, and there are channels.
    "{{ '<|start|>system<|message|>You are a model.<|end|>' }}"
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ '<|start|>developer<|message|>' + m['content'] + '<|end|>' }}"
    "{% elif m['role'] == 'user' %}{{ '<|start|>user<|message|>' + m['content'] + '<|end|>' }}"
    "{% else %}{{ '<|start|>assistant' }}{% if loop.last and not add_generation_prompt %}"
    + _answer(
        "('<|channel|>analysis<|message|>' + m['thinking'] + '<|end|><|start|>assistant' "
        "if m['thinking'] else '') + '<|channel|>final<|message|>' + m['content'] + '<|return|>'"
    )
    + "{% else %}"
    + _answer("'<|channel|>final<|message|>' + m['content'] + '<|end|>'")
    + "{% endif %}{% endif %}{% endfor %}"
    + _prompt("<|start|>assistant")
)

FAMILIES = {
    "chatml": Family(
        _turns(
            _CHATML,
            "{{ '<|im_start|>assistant\\n' }}"
            + _answer("m['content'] + '<|im_end|>'")
            + "{{ '\\n' }}",
            behind=_prompt("<|im_start|>assistant\\n"),
        ),
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|endoftext|>",
        begins_with_assistant=True,
    ),
    "llama2": Family(
        _LLAMA_2, ("<unk>", "<s>", "</s>"), eos="</s>", bos="<s>", kind=PIECES, prompts=False
    ),
    "llama3": Family(
        _turns(
            "'<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + "
            "'<|eot_id|>'",
            "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
            + _answer("m['content'] | trim + '<|eot_id|>'"),
            before="{{ bos_token }}",
            behind=_prompt("<|start_header_id|>assistant<|end_header_id|>\\n\\n"),
        ),
        (
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|reserved_special_token_0|>",
        ),
        eos="<|eot_id|>",
        bos="<|begin_of_text|>",
        begins_with_assistant=True,
    ),
    "mistral": Family(
        _MISTRAL,
        ("<unk>", "<s>", "</s>"),
        eos="</s>",
        bos="<s>",
        kind=PIECES,
        has_system=False,
        prompts=False,
    ),
    "gemma": Family(
        _turns(
            "'<start_of_turn>' + m['role'] + '\\n' + m['content'] | trim + '<end_of_turn>\\n'",
            "{{ '<start_of_turn>model\\n' }}"
            + _answer("m['content'] | trim + '<end_of_turn>'")
            + "{{ '\\n' }}",
            before="{{ bos_token }}" + _NO_SYSTEM,
            behind=_prompt("<start_of_turn>model\\n"),
        ),
        ("<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        eos="<eos>",
        bos="<bos>",
        kind=PIECES,
        has_system=False,
        begins_with_assistant=True,
    ),
    "phi3": Family(
        _turns(
            "'<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n'",
            "{{ '<|assistant|>\\n' }}" + _answer("m['content'] + '<|end|>'") + "{{ '\\n' }}",
            behind="{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}"
            "{{ eos_token }}{% endif %}",
        ),
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        eos="<|endoftext|>",
        begins_with_assistant=True,
    ),
    "qwen2": Family(
        _turns(
            _CHATML,
            "{{ '<|im_start|>assistant\\n' }}"
            + _answer("m['content'] + '<|im_end|>'")
            + "{{ '\\n' }}",
            before="{% if messages[0]['role'] != 'system' %}"
            "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}",
            behind=_prompt("<|im_start|>assistant\\n"),
        ),
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        begins_with_assistant=True,
    ),
    "qwen3": Family(
        _QWEN_3,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        thinks=True,
        begins_with_assistant=True,
    ),
    "thoughtful": Family(
        _THOUGHTFUL, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), eos="<|im_end|>"
    ),
    "deepseek_r1": Family(
        _DEEPSEEK_R1,
        ("<|begin|>", "<|end_of_sentence|>", "<|User|>", "<|Assistant|>", "<|pad|>"),
        eos="<|end_of_sentence|>",
        bos="<|begin|>",
        thinks=True,
        begins_with_assistant=True,
    ),
    "zephyr": Family(
        _turns(
            "'<|' + m['role'] + '|>\\n' + m['content'] + eos_token + '\\n'",
            "{{ '<|assistant|>\\n' }}" + _answer("m['content'] + eos_token") + "{{ '\\n' }}",
            behind=_prompt("<|assistant|>\\n"),
        ),
        ("<unk>", "<s>", "</s>"),
        eos="</s>",
        bos="<s>",
        kind=PIECES,
        begins_with_assistant=True,
    ),
    "vicuna": Family(
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
        "{{ m['content'] + ' ' }}{% elif m['role'] == 'user' %}{{ 'USER: ' + m['content'] + ' ' }}"
        "{% else %}{{ 'ASSISTANT:' }}"
        + _answer("' ' + m['content'] + eos_token")
        + "{% endif %}{% endfor %}"
        + _prompt("ASSISTANT:"),
        ("<unk>", "<s>", "</s>"),
        eos="</s>",
        bos="<s>",
        kind=PIECES,
        begins_with_assistant=True,
    ),
    "gpt_oss": Family(
        _GPT_OSS,
        (
            "<|startoftext|>",
            "<|endoftext|>",
            "<|return|>",
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
        ),
        eos="<|return|>",
        thinks_apart=True,
        begins_with_assistant=True,
    ),
}


def unmarked(template):
    """Without {% generation %}."""
    return re.sub(r"\{% (end)?generation %\}", "", template)


def make_tokenizer(folder, family, template):
    """Writes the folder of a family's tokenizer, with that template."""
    folder.mkdir(parents=True)
    made = _of_bytes(family) if family.kind == BYTES else _of_pieces(family)
    made.add_special_tokens(list(family.specials))
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": family.eos,
        "chat_template": template,
        **({"bos_token": family.bos} if family.bos else {}),
        **({"unk_token": "<unk>"} if family.kind == PIECES else {}),
        **({"pad_token": "<|endoftext|>"} if family.eos == "<|im_end|>" else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def tiny_llama(**changes):
    """The configuration of a model of two blocks, for the tokens of every family."""
    import transformers  # Templates and tokenizers go without it.

    return transformers.LlamaConfig(
        vocab_size=360,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **changes,
    )


_WORDS = "the answer of an assistant to what a user asks, and 12 more: a river runs slow.\n\n"


def _of_bytes(family):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        [_WORDS] * 4,
        tokenizers.trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=list(family.specials),
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def _of_pieces(family):
    vocabulary = {"<unk>": 0}
    for text in family.specials:
        vocabulary.setdefault(text, len(vocabulary))
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    letters = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:[]<>/0123456789\n"
    for letter in letters:
        vocabulary[letter] = len(vocabulary)
    merges = []
    for first, second in ("\u2581t", "he", ("\u2581t", "he"), "\u2581a", "er", "in", "on", ":\n"):
        vocabulary.setdefault(first + second, len(vocabulary))
        merges.append((first, second))
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    normalizers = tokenizers.normalizers
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    decoders = tokenizers.decoders
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made

"""Writes a tiny language model for llama.cpp: make_model.py FILE

It has the architecture of Llama, random weights that are the same each time, and a vocabulary of
bytes and some words. What it says makes no sense, but llama.cpp serves it like any other model.
At temperature 0 it says only words, and it goes on until `max_tokens`: the rows of the bytes and of
the end of text are zero in the output, so that a word is always more likely.
"""

import sys

import gguf
import numpy

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 65_536
WORDS = """the a of to in is that it he was for on are as with his they at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look two
more write go see number no way could people my than first water been call who oil its now find
long down day did get come made may part Paris Rome weather city hello system user assistant""".split()
SPACE = "\u2581"
# The beginning of a call of a tool; `logit_bias` makes the model begin one.
CALL = "<tool_call>"
TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def vocabulary():
    """Pieces of the tokenizer with their scores and types."""
    kinds = gguf.TokenType
    pieces = [(name, 0.0, kinds.CONTROL) for name in ("<unk>", "<s>", "</s>")]
    pieces += [(CALL, 0.0, kinds.USER_DEFINED), (SPACE, -1e6, kinds.NORMAL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    letters = sorted({letter for word in WORDS for letter in word})
    pieces += [(letter, -1e6, kinds.NORMAL) for letter in letters]
    # A word is put together letter by letter, so each beginning of it is a piece as well.
    starts = {f"{SPACE}{word[:n]}" for word in WORDS for n in range(1, len(word) + 1)}
    ordered = sorted(starts, key=lambda start: (-len(start), start))
    pieces += [(start, -float(rank), kinds.NORMAL) for rank, start in enumerate(ordered)]
    return pieces


def main(path):
    random = numpy.random.default_rng(24)
    pieces = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)

    def tensor(name, *shape):
        weights = random.standard_normal(shape, dtype=numpy.float32)
        writer.add_tensor(name, weights * numpy.float32(shape[-1] ** -0.5))

    tensor("token_embd.weight", len(pieces), WIDTH)
    output = random.standard_normal((len(pieces), WIDTH), dtype=numpy.float32)
    whole = {f"{SPACE}{word}" for word in WORDS}
    output[[n for n, (piece, _, _) in enumerate(pieces) if piece not in whole]] = 0
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, dtype=numpy.float32))
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(WIDTH, dtype=numpy.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        tensor(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])

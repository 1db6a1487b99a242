"""A Llama of random weights with a tokenizer of 512 words, as a folder. usage: make_model.py FOLDER [VOCABULARY]"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 512


def tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.BPE(unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    plain.train_from_iterator(["the quick brown fox jumps over the lazy dog hello world " * 20], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=512,
    )


def main() -> None:
    folder = sys.argv[1]
    vocabulary = int(sys.argv[2]) if len(sys.argv) > 2 else WORDS
    tokenizer().save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()

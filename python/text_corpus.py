"""Turns documents (strings) into a tokenizer, token files and their statistics."""
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil

import numpy as np
import tokenizers

from document_tokens import document_tokens
from indexed_dataset import write_dataset

END_OF_TEXT = "<|endoftext|>"
# Files of a tokenizer beside tokenizer.json, and the file that names the tokens that end a text.
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                   "generation_config.json")
MAX_ENTRIES = 10**6  # the trainer reserves memory for this number of entries


@dataclasses.dataclass(frozen=True)
class GivenTokenizer:
    """The tokenizer of a corpus, and how it turns documents into tokens (document_tokens.py)."""
    tokenizer: tokenizers.Tokenizer = None  # None: a tokenizer is trained
    folder: pathlib.Path = None             # folder with the other files of the tokenizer; None: it has no other files
    config: dict = dataclasses.field(default_factory=dict)  # content of its tokenizer_config.json
    eod_token: str = END_OF_TEXT
    bos: str = "auto"
    special_tokens: str = "control"


def split_blank_lines(text):
    """Returns the documents, which are separated by blank lines."""
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def train_tokenizer(documents, vocab_size):
    """Trains a byte-level BPE, which can encode text in any language. Token 0 ends a document."""
    if vocab_size > MAX_ENTRIES:
        raise ValueError(f"--vocab-size {vocab_size}: expected at most {MAX_ENTRIES}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    if tokenizer.get_vocab_size() > vocab_size:
        raise ValueError(f"--vocab-size {vocab_size}: expected at least {tokenizer.get_vocab_size()} (256 bytes, 1 end of text)")
    return tokenizer


def split_held_out(documents, fraction):
    """Holds out the last documents, which together have at least `fraction` of the characters."""
    wanted, held = fraction * sum(map(len, documents)), 0
    cut = len(documents)
    while cut > 0 and held < wanted:
        cut -= 1
        held += len(documents[cut])
    return documents[:cut], documents[cut:]


def unigram_loss(train_counts, valid_counts):
    """Returns the cross-entropy, in nats per token, of held-out tokens under the training tokens' frequencies (add-one
    smoothing). A model that ignores the order of tokens has this loss."""
    smoothed = train_counts + 1.0
    log_probability = np.log(smoothed / smoothed.sum())
    return float(-(valid_counts * log_probability).sum() / valid_counts.sum())


def cut_held_out(documents, fraction):
    """Like split_held_out, but holds out the end of a single document's text, starting at a line or a word."""
    if len(documents) != 1 or fraction == 0:
        return split_held_out(documents, fraction)
    text = documents[0]
    held = max(1, round(fraction * len(text)))
    cut = max(len(text) - held, 0)
    for separator in ("\n", " "):
        found = text.rfind(separator, max(cut - held, 1), cut)
        if found >= 0:
            return [text[:found + 1]], [text[found + 1:]]
    return [text[:cut]], [text[cut:]]


def write_tokenizer_config(folder, source, eod_token):
    """Writes the files that transformers reads in addition to tokenizer.json: copies from the folder `source`, or else a
    tokenizer_config.json.
    """
    for name in TOKENIZER_FILES:
        if source and (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    if not path.exists():
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod_token, "clean_up_tokenization_spaces": False}
        path.write_text(json.dumps(config, indent=2) + "\n")


def write_corpus(folder, documents, vocab_size, held_out, given=GivenTokenizer()):
    """Writes train.{bin,idx}, valid.{bin,idx} and the tokenizer's files into `folder`. Returns the content of meta.json."""
    train, valid = cut_held_out(documents, held_out)
    if not train or not any(train):
        raise ValueError(f"--held-out {held_out}: expected more text: {len(documents)} documents with "
                         f"{sum(map(len, documents))} characters leave none to train on")
    tokenizer = given.tokenizer or train_tokenizer(train, vocab_size)
    tokens = document_tokens(tokenizer, train, given.eod_token, given.bos, given.config, given.special_tokens)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    write_tokenizer_config(folder, given.folder, given.eod_token)
    vocab_size = 1 + max(tokenizer.get_vocab().values())  # ids may have gaps, and a short text gives fewer entries
    train_counts = write_dataset(folder / "train", tokens.encode(tokenizer, train), vocab_size)
    meta = {"vocab_size": vocab_size, "begin_ids": tokens.begin, "special_tokens": given.special_tokens,
            "train_documents": len(train), "train_tokens": int(train_counts.sum())}
    if valid:
        valid_counts = write_dataset(folder / "valid", tokens.encode(tokenizer, valid), vocab_size)
        meta |= {"valid_documents": len(valid), "valid_tokens": int(valid_counts.sum()),
                 "unigram_loss": unigram_loss(train_counts, valid_counts)}
    return meta


def write_aside(folder, fill):
    """Calls fill(partial folder), which returns the content of meta.json. Then renames the partial folder to `folder`."""
    folder = pathlib.Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        meta = fill(partial)
        (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return meta


def sha256(data):
    return hashlib.sha256(data).hexdigest()

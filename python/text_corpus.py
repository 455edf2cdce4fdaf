"""From documents (strings) to a tokenizer, token files and the numbers that describe them."""
import hashlib
import json
import pathlib
import re
import shutil

import numpy as np
import tokenizers

from indexed_dataset import write_dataset

END_OF_TEXT = "<|endoftext|>"
BATCH = 4096


def split_blank_lines(text):
    """Documents are runs of lines between blank lines."""
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def train_tokenizer(documents, vocab_size):
    """Byte-level BPE: every text can be encoded, whatever its language. Token 0 ends a document."""
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


def encode(tokenizer, documents):
    """Token ids of each document, ended by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise ValueError(f"the tokenizer has no token {END_OF_TEXT}")
    for start in range(0, len(documents), BATCH):
        for encoding in tokenizer.encode_batch_fast(documents[start:start + BATCH], add_special_tokens=False):
            yield encoding.ids + [end]


def split_held_out(documents, fraction):
    """The last documents that together hold at least `fraction` of the characters are held out."""
    wanted, held = fraction * sum(map(len, documents)), 0
    cut = len(documents)
    while cut > 0 and held < wanted:
        cut -= 1
        held += len(documents[cut])
    return documents[:cut], documents[cut:]


def unigram_loss(train_counts, valid_counts):
    """Cross-entropy, in nats a token, of held-out tokens under the training tokens' frequencies (add-one smoothing):
    what a model that knows no order would reach."""
    smoothed = train_counts + 1.0
    log_probability = np.log(smoothed / smoothed.sum())
    return float(-(valid_counts * log_probability).sum() / valid_counts.sum())


def write_corpus(folder, documents, vocab_size, held_out, tokenizer=None):
    """Writes train.{bin,idx}, valid.{bin,idx}, tokenizer.json into `folder`; returns what meta.json says of them."""
    train, valid = split_held_out(documents, held_out)
    if not train or (held_out > 0 and not valid):
        raise ValueError(f"{len(documents)} documents are too few to hold out {held_out:.0%} of the text")
    tokenizer = tokenizer or train_tokenizer(train, vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab_size = max(vocab_size, tokenizer.get_vocab_size())
    train_counts = write_dataset(folder / "train", encode(tokenizer, train), vocab_size)
    meta = {"vocab_size": vocab_size, "train_documents": len(train), "train_tokens": int(train_counts.sum())}
    if valid:
        valid_counts = write_dataset(folder / "valid", encode(tokenizer, valid), vocab_size)
        meta |= {"valid_documents": len(valid), "valid_tokens": int(valid_counts.sum()),
                 "unigram_loss": unigram_loss(train_counts, valid_counts)}
    return meta


def write_aside(folder, fill):
    """Calls fill(partial folder), which returns meta, then makes everything appear at once as `folder`."""
    folder = pathlib.Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    meta = fill(partial)
    (partial / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    partial.rename(folder)
    return meta


def sha256(data):
    return hashlib.sha256(data).hexdigest()

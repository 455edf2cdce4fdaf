"""Prepares text of your own for training: OUTPUT/{train,valid}.{bin,idx}, tokenizer.json and meta.json.

Then: ./run tessera train --data OUTPUT/train --valid OUTPUT/valid ... with a model whose vocab_size is that of meta.json.
"""
import argparse
import json
import pathlib
import sys

import tokenizers

from text_corpus import split_blank_lines, write_aside, write_corpus


def read_documents(path, split):
    """A .jsonl file holds one document a line, in the field "text"; any other file is UTF-8 text, cut as --split says."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line)["text"] for line in text.splitlines() if line.strip()]
    return split_blank_lines(text) if split == "blank-lines" else [text]


def load_tokenizer(path):
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"--tokenizer {path}: {error}") from None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=pathlib.Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="FOLDER", help="must not exist yet")
    parser.add_argument("--vocab-size", type=int, default=4096, help="entries of the byte-level BPE to train (at least 257)")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="use this tokenizer.json and train none")
    parser.add_argument("--split", choices=("file", "blank-lines"), default="file", help="what one document is")
    parser.add_argument("--held-out", type=float, default=0.02, help="share of the text, at its end, kept for --valid")
    return parser.parse_args()


def prepare(arguments):
    if arguments.output.exists():
        raise ValueError(f"--output {arguments.output}: exists already")
    if not 0 <= arguments.held_out < 1:
        raise ValueError(f"--held-out {arguments.held_out}: expected a share from 0 to below 1")
    documents = [document for path in arguments.input for document in read_documents(path, arguments.split)]
    tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    vocab_size = 0 if tokenizer else arguments.vocab_size
    return write_aside(arguments.output, lambda folder: write_corpus(folder, documents, vocab_size, arguments.held_out, tokenizer))


def main():
    arguments = parse_arguments()
    try:
        print(json.dumps(prepare(arguments), indent=2))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

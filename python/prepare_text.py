"""Prepares your own text for training: OUTPUT/{train,valid}.{bin,idx}, the tokenizer's files and meta.json. A run on this data
contains a copy of the tokenizer.

Then run ./run tessera train --data OUTPUT/train --valid OUTPUT/valid ... with a model that has the vocab_size of meta.json.
"""
import argparse
import json
import pathlib
import re
import sys

import tokenizers

from document_tokens import name_in
from standard_output import print_results
from text_corpus import END_OF_TEXT, GivenTokenizer, split_blank_lines, write_aside, write_corpus


def read_documents(path, split):
    """Reads one document per line from the field "text" of a .jsonl file. Any other file is UTF-8 text, split according to --split."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"--input {path}: {error.strerror}") from None
    if data.startswith(b"\x1f\x8b"):
        raise ValueError(f"--input {path}: is compressed by gzip, expected UTF-8 text (gunzip it first)")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--input {path}: byte {error.start} is not UTF-8, expected a text file "
                         "(iconv -t UTF-8 converts text of another encoding)") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        raise ValueError(f"--input {path}: byte {data.index(0)} is 0, expected a text file")
    if path.suffix == ".jsonl":
        return [document_of_line(line, f"--input {path}: line {number}")
                for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return split_blank_lines(text) if split == "blank-lines" else [text]


def document_of_line(line, where):
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f'{where}: is not JSON ({error}), expected {{"text": ...}} on each line') from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError(f'{where}: has no text in the field "text", expected {{"text": ...}} on each line')
    if re.search("[\ud800-\udfff]", value["text"]):
        raise ValueError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff), expected text that UTF-8 can represent")
    return value["text"]


def load_tokenizer(path):
    """Loads a tokenizer. It neither truncates nor pads documents, even if its file has such settings."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises only Exception
        raise ValueError(f"--tokenizer {path}: is not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tokenizer_config(folder):
    """Returns the content of a folder's tokenizer_config.json. The object is empty without a folder or a file."""
    path = folder / "tokenizer_config.json" if folder else None
    if not path or not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--tokenizer {path}: is not a JSON object ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"--tokenizer {path}: is not a JSON object")
    return config


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=pathlib.Path, nargs="+", required=True, metavar="FILE",
                        help='text in UTF-8; in a file with the ending .jsonl, each line is a document with its text in the field "text"')
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="FOLDER", help="must not exist yet")
    parser.add_argument("--vocab-size", type=int, default=4096,
                        help="entries of the byte-level BPE to train (at least 257; a short text gives fewer) [%(default)s]")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="use this tokenizer.json, or the one of this folder, instead of training one")
    parser.add_argument("--eod-token", metavar="NAME",
                        help="token of --tokenizer that ends a document (default: eos_token of the tokenizer_config.json beside "
                             f"it, or {END_OF_TEXT})")
    parser.add_argument("--bos", choices=("auto", "on", "off"), default="auto",
                        help="whether the tokens that begin a text precede each document: if the tokenizer adds them to a text (auto), "
                             "always, or never; tessera generate does the same with prompts of a model that is trained on this data "
                             "[%(default)s]")
    parser.add_argument("--special-tokens", choices=("control", "text"), default="control",
                        help=f"the name of a control token such as {END_OF_TEXT} inside a text becomes this token (control), or tokens "
                             "of its characters (text) [%(default)s]")
    parser.add_argument("--split", choices=("file", "blank-lines"), default="file",
                        help="one document per file or per block between blank lines [%(default)s]")
    parser.add_argument("--held-out", type=float, default=0.02,
                        help="fraction of the text that is held out for --valid: the last documents that together have at least this "
                             "fraction, or the end of a single document [%(default)s]")
    return parser.parse_args()


def prepare(arguments):
    if arguments.output.exists():
        raise ValueError(f"--output {arguments.output}: exists already, expected the name of a new folder")
    if not 0 <= arguments.held_out < 1:
        raise ValueError(f"--held-out {arguments.held_out}: expected a share from 0 to below 1")
    documents = [document for path in arguments.input for document in read_documents(path, arguments.split)]
    if not arguments.tokenizer and arguments.eod_token not in (None, END_OF_TEXT):
        raise ValueError(f"--eod-token {arguments.eod_token}: expected it with --tokenizer (a tokenizer that this script trains has {END_OF_TEXT})")
    if arguments.tokenizer and arguments.tokenizer.is_dir():
        arguments.tokenizer /= "tokenizer.json"
    tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
    if sys.stderr and sys.stderr.isatty():
        print(f"{len(documents)} documents; {'' if tokenizer else 'training a tokenizer, then '}encoding", file=sys.stderr)
    vocab_size = 0 if tokenizer else arguments.vocab_size
    # Files beside a tokenizer.json belong to it.
    beside = arguments.tokenizer.parent if tokenizer and arguments.tokenizer.name == "tokenizer.json" else None
    config = read_tokenizer_config(beside)
    given = GivenTokenizer(tokenizer, beside, config, arguments.eod_token or name_in(config, "eos_token") or END_OF_TEXT,
                           arguments.bos, arguments.special_tokens)
    return write_aside(arguments.output, lambda folder: write_corpus(folder, documents, vocab_size, arguments.held_out, given))


def main():
    arguments = parse_arguments()
    try:
        meta = prepare(arguments)
    except OSError as error:
        print(f"error: {error.filename or arguments.output}: {error.strerror or error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_results(json.dumps(meta, indent=2), "prepare_text.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Prepares the demo's text: the dictionary of Debian's package dict-gcide (40 MB), one document per entry.

Writes OUTPUT/{train,valid}.{bin,idx}, the tokenizer's files and meta.json. Does nothing if OUTPUT is complete.
"""
import argparse
import gzip
import pathlib
import re
import sys

from standard_output import print_results
from text_corpus import sha256, write_aside, write_corpus

VOCAB_SIZE = 4096
HELD_OUT = 0.02
# An entry starts with its headword at the margin after a blank line; the rest of the entry is indented.
ENTRY = re.compile(r"\n\n(?=[^\s])")
# A line break inside a paragraph comes from the page width of the original.
WRAP = re.compile(r"(?<=\S)\n[ \t]+(?=\S)")


def entries(text):
    """Returns the dictionary's entries with unwrapped paragraphs, without the first ones, which describe the database."""
    parts = [part.strip() for part in ENTRY.split(text)]
    return [re.sub(r"\n\s*\n[ \t]*", "\n", WRAP.sub(" ", part)) for part in parts if part and not part.startswith("00-database")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path, default=pathlib.Path("/usr/share/dictd/gcide.dict.dz"))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("data/demo"))
    arguments = parser.parse_args()
    output = arguments.output
    if (output / "meta.json").exists():
        print_results(f"{output} is complete", "prepare_demo.py")
        return 0
    if output.exists():
        print(f"error: {output} exists but holds no meta.json: move it away", file=sys.stderr)
        return 2
    if not arguments.source.exists():
        print(f"error: {arguments.source} not found: install the Debian package dict-gcide, or use your own text with "
              "python/prepare_text.py", file=sys.stderr)
        return 2
    data = gzip.decompress(arguments.source.read_bytes())
    documents = entries(data.decode("utf-8", errors="replace"))
    source = {"source": arguments.source.name, "source_bytes": len(data), "source_sha256": sha256(data)}
    print_results(f"{len(documents)} documents; training a tokenizer of {VOCAB_SIZE} entries, then encoding", "prepare_demo.py")
    try:
        meta = write_aside(output, lambda folder: source | write_corpus(folder, documents, VOCAB_SIZE, HELD_OUT))
    except (OSError, ValueError) as error:
        print(f"error: {output}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    print_results(f"{output}: {meta['train_tokens']} training tokens, {meta['valid_tokens']} held out, "
                  f"unigram loss {meta['unigram_loss']:.4f}", "prepare_demo.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())

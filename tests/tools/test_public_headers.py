#!/usr/bin/env python3
"""Checks the list of public headers in docs/library.md: each header exists, and the examples include only listed headers."""
import pathlib
import re
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTED = re.compile(r"`(tessera/[\w/]+\.h)`")
INCLUDED = re.compile(r'#include "(tessera/[\w/]+\.h)"')


class PublicHeaders(unittest.TestCase):
    def setUp(self):
        text = (ROOT / "docs/library.md").read_text()
        self.listed = LISTED.findall(text[text.index("## Public headers"):])

    def test_each_listed_header_exists_once(self):
        self.assertGreater(len(self.listed), 20)
        self.assertEqual([name for name in self.listed if not (ROOT / name).is_file()], [])
        self.assertEqual(len(self.listed), len(set(self.listed)))

    def test_the_examples_include_only_listed_headers(self):
        sources = sorted((ROOT / "examples").glob("*.cpp"))
        self.assertEqual(len(sources), 7)
        included = {name for source in sources for name in INCLUDED.findall(source.read_text())}
        self.assertGreater(len(included), 5)
        self.assertEqual(sorted(included - set(self.listed)), [])


if __name__ == "__main__":
    run_cases()

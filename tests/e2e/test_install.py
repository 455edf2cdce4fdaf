#!/usr/bin/env python3
"""Tests cmake --install: the examples build against the installed package and run, after the package has been moved. Also builds
a program in a project that adds this repository with add_subdirectory."""
import pathlib
import shutil
import subprocess
import unittest

from program import ROOT, TESSERA, scratch, tessera, write_tokens
from summary import run_cases

BUILD = pathlib.Path(TESSERA).resolve().parents[1]
PARENT = """cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
add_subdirectory(%s tessera)
add_executable(program program.cpp)
target_link_libraries(program PRIVATE Tessera::layout)
add_executable(network network.cpp)
target_link_libraries(network PRIVATE Tessera::train)
"""
PROGRAM = """#include "tessera/layout/layout.h"
int main() { return static_cast<int>(tessera::layout::even_part(10, 1, 3).size()); }
"""
# Links libtorch, whose headers contain a version of fmt.
MESSAGE = """cmake_minimum_required(VERSION 3.25)
project(message LANGUAGES CXX)
find_package(Tessera REQUIRED)
add_executable(message message.cpp)
target_link_libraries(message PRIVATE Tessera::ops)
"""
MESSAGE_PROGRAM = """#include <cstdio>
#include "tessera/base/error.h"
int main() { std::puts(tessera::Error("{} of {}", 1.5, "two").what()); }
"""


def call(*words, code=0, **options):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    output = result.stdout + result.stderr
    assert result.returncode == code, f"{words} ended with {result.returncode}, expected {code}:\n{output[-3000:]}"
    return output


def cache_value(name):
    lines = (BUILD / "CMakeCache.txt").read_text().splitlines()
    return next((line.split("=", 1)[1] for line in lines if line.startswith(name + ":")), "")


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("install")
        first = cls.folder / "first"
        cls.cmake = cache_value("CMAKE_COMMAND")
        call(cls.cmake, "--install", BUILD, "--prefix", first)
        cls.prefix = first.rename(cls.folder / "moved")
        cls.generator = ["-G", "Ninja", f"-DCMAKE_BUILD_TYPE={cache_value('CMAKE_BUILD_TYPE')}"]
        if cache_value("CCACHE").startswith("/"):  # repeated runs compile the same files
            cls.generator.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={cache_value('CCACHE')}")

    def configure(self, source, name, *options, code=0):
        return call(self.cmake, *self.generator, "-S", source, "-B", self.folder / name, *options, code=code)

    def test_the_examples_build_and_run(self):
        examples = shutil.copytree(ROOT / "examples", self.folder / "examples")
        for source in examples.glob("*.cpp"):
            self.assertLess(len(source.read_text().splitlines()), 100, source)
        self.configure(examples, "built", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        call(self.cmake, "--build", self.folder / "built", "-j2")
        built = self.folder / "built"

        self.assertIn("by all_gather", call(built / "redistribute"))
        self.assertRegex(call(built / "prove_schedule"), r"proved: .*\nafter a wrong change: event \d+ ")
        self.assertIn("gathered by 4 ranks, 0 differ", call(built / "cast_masters"))
        for network in ("own_module", "grouped_linear"):
            self.assertIn("one rank and four ranks: equal bits", call(built / network))

        llama = self.folder / "llama"
        self.assertIn("loss after 60 steps", call(built / "train_llama", llama))
        self.assertEqual("10,13,16,19,22\n", tessera("generate", llama, "--prompt-ids", "1,4,7", "--tokens", 5))
        hf = self.folder / "llama-hf"
        tessera("convert", llama, hf)
        self.assertEqual("10,13,16,19,22\n", tessera("generate", hf, "--prompt-ids", "1,4,7", "--tokens", 5))
        tessera("convert", hf, self.folder / "llama-again")
        self.assertIn("model.embed_tokens.weight", (hf / "model.safetensors").read_bytes()[:4000].decode("latin1"))

        run = self.folder / "run"
        data = write_tokens(self.folder / "text", 97)
        tessera("train", "--model", "llama-tiny-odd", "--data", data, "--tp", 2, "--gtp", 2, "--seq-len", 32,
                "--global-batch", 2, "--steps", 1, "--out", run)
        for ranks in (1, 3, 200):
            self.assertRegex(call(built / "read_checkpoint", run, ranks), rf"read by {ranks} ranks, 0 differ")
        self.assertIn("no-such-run", call(built / "read_checkpoint", self.folder / "no-such-run", 2, code=2))

    def test_the_installed_program_reads_the_installed_configs(self):
        configs = self.prefix / "share/tessera/configs"
        (configs / "llama-tiny").rename(configs / "only-installed")
        self.addCleanup((configs / "only-installed").rename, configs / "llama-tiny")
        self.assertIn("layers", call(self.prefix / "bin/tessera", "inspect", "layout", "--model", "only-installed"))

    def test_programs_format_messages(self):
        source = self.folder / "message"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(MESSAGE)
        (source / "message.cpp").write_text(MESSAGE_PROGRAM)
        self.configure(source, "message-built", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        call(self.cmake, "--build", self.folder / "message-built")
        self.assertEqual("1.5 of two\n", call(self.folder / "message-built/message"))

    def test_another_version_of_torch_is_refused(self):
        torch = self.folder / "torch"
        (torch / "lib").mkdir(parents=True)
        for name in ("libtorch_cpu.so", "libc10.so"):
            (torch / "lib" / name).touch()
        (torch / "version.py").write_text("__version__ = '1.2.3+cpu'\n")
        output = self.configure(ROOT / "examples", "refused", f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DTESSERA_TORCH={torch}", code=1)
        self.assertIn("is PyTorch 1.2.3+cpu; Tessera was built with PyTorch 2.", " ".join(output.split()))

    def test_a_project_adds_the_repository(self):
        parent = self.folder / "parent"
        parent.mkdir()
        (parent / "CMakeLists.txt").write_text(PARENT % ROOT)
        (parent / "program.cpp").write_text(PROGRAM)
        (parent / "network.cpp").write_text((ROOT / "examples/own_module.cpp").read_text())
        self.configure(parent, "parent-built", f"-DTESSERA_TORCH={cache_value('TESSERA_TORCH')}")
        call(self.cmake, "--build", self.folder / "parent-built", "-j2", "--target", "program")
        call(self.folder / "parent-built/program", code=3)  # even_part(10, 1, 3) is [3, 6)
        targets = call(self.cmake, "--build", self.folder / "parent-built", "--target", "help")
        self.assertNotIn("test_layout", targets)


if __name__ == "__main__":
    run_cases()

// Reads many mutated inputs with one reader.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutate.h"

namespace tessera::fuzz {

struct Reader {
  std::string name;
  std::vector<std::string> seeds;  // valid inputs
  std::function<std::string(const std::string&, Random&)> mutate;
  std::function<void(const std::string&)> read;
  // Makes the files that `read` opens. Its time and memory are not checked.
  std::function<void(const std::string&)> write = [](const std::string&) {};
  bool may_fail = false;  // whether `read` reports bad input by an Error instead of an InputError
};

// Checks that `read` accepts every seed. Then reads mutated inputs. Each of them must be accepted, or refused by an
// InputError whose message is one line of limited length. Reading must take less than 1 s of processor time, and less
// than 4 times the input + 64 MiB of memory. The environment variable TESSERA_FUZZ_INPUTS sets the number of inputs,
// and TESSERA_FUZZ_FIRST the number of the first one. Input i is the same in every run. After a crash, the last line on
// standard error names the input.
void fuzz(const Reader& reader);

// Returns the number of inputs, or `fallback` if the environment does not set it.
std::size_t inputs_to_read(std::size_t fallback);

}  // namespace tessera::fuzz

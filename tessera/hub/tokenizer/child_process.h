// Runs a child program that reads its whole input before it writes its output.
#pragma once
#include <string>
#include <vector>

namespace tessera::hub {

struct ChildResult {
  bool started = false;  // false: the program was not found or cannot be executed
  int code = 0;          // exit code, or 128 + N if signal N ended the program
  std::string output;    // the text that the program wrote to standard output
};
// Runs the program words[0], which is searched in PATH, with `input` as its standard input. The child's standard error
// is the standard error of this process. Blocks until the program ends. Throws Error if the system cannot create a
// process or a socket.
ChildResult run_child(const std::vector<std::string>& words, const std::string& input);

}  // namespace tessera::hub

// Runs another program that reads its whole input and then writes its whole output.
#pragma once
#include <string>
#include <vector>

namespace tessera::run {

struct ChildResult {
  bool started = false;  // false: the program was not found or cannot be executed
  int code = 0;          // exit code; 128 + N: ended by signal N
  std::string output;    // the text that the program wrote to standard output
};
// Runs words[0], which is looked up on the path, with `input` as its standard input. The child's standard error is that
// of this process. Blocks until the program ends. Throws Error if the system cannot create a process or a socket.
ChildResult run_child(const std::vector<std::string>& words, const std::string& input);

}  // namespace tessera::run

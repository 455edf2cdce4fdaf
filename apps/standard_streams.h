// The standard output and error of the program.
#pragma once
#include <ext/stdio_sync_filebuf.h>

#include <optional>

#include "tessera/base/process/output_stream.h"

namespace tessera::apps {

// stdout, stderr and std::cout write through the object, so a failed write neither ends the program nor gets lost. A
// standard stream that is closed when the program starts keeps its number. Otherwise a file of the program would get
// the number, and with it the text of the stream. The process has one object, which exists until the process ends.
class StandardStreams {
 public:
  StandardStreams();
  StandardStreams(const StandardStreams&) = delete;
  StandardStreams& operator=(const StandardStreams&) = delete;

  // For a command whose results are in files: a failed write to standard output prints one line on standard error, and
  // check() does not throw. A slow reader does not delay the command.
  void continue_without_output();
  // Writes the whole output. Throws Error if output is lost.
  void check();
  // Writes the whole output of all streams.
  void finish();

 private:
  std::optional<base::OutputStream> output_, errors_;
  std::optional<__gnu_cxx::stdio_sync_filebuf<char>> cout_;
  bool continues_ = false;
};

}  // namespace tessera::apps

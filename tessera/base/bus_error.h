// Reports an access to a memory-mapped file that fails.
#pragma once

namespace tessera::base {

// Installs a handler for SIGBUS. The process then ends with one line and exit code 1 if it cannot access a page of a
// mapped file. Causes are a file that became shorter, and a disk that is full or fails. The line names the file. Linux
// only.
void report_bus_errors();

}  // namespace tessera::base

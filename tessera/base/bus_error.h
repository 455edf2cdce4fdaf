// Reports an access to a memory-mapped file that fails.
#pragma once

namespace tessera::base {

// Installs a handler for SIGBUS. The process then ends with one line and exit code 1 if it accesses a page of a mapped
// file that cannot be read or written: the file became shorter, or its disk is full or fails. The line names the file.
// Linux only.
void report_bus_errors();

}  // namespace tessera::base

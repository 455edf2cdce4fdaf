// Reports failed accesses to memory-mapped files.
#pragma once

namespace tessera::base {

// Installs a handler for SIGBUS, the signal for a failed access to a page of a mapped file. The handler prints one line
// that names the file, and ends the process with exit code 1. An access fails if the file became shorter, or if the
// disk is full or fails. Linux only.
void report_bus_errors();

}  // namespace tessera::base

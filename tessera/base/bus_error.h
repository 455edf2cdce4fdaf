// What becomes of a process whose mapped file fails under it.
#pragma once

namespace tessera::base {

// From now on this process ends with one line and exit code 1 when it touches a page of a mapped file that is not to
// be had: the file became shorter, or its disk is full or fails (SIGBUS). The line names the file. Linux.
void report_bus_errors();

}  // namespace tessera::base

// Identities of hosts. Names are not sufficient, because two hosts may have the same name.
#pragma once
#include <string>

namespace tessera::rendezvous {

// Returns the host's name and the identity that the kernel draws when it boots. Processes with equal texts run on one
// host, as far as a process can detect. A virtual machine and its copy may have equal texts. If the kernel's identity
// cannot be read, the text equals no other text.
std::string host_identity();

// Returns host_identity() and the identity of this process's network. Processes with equal texts reach each other
// through loopback, as far as a process can detect.
std::string network_identity();

// Returns the name of this host.
std::string host_name();

}  // namespace tessera::rendezvous

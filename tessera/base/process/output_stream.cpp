#include "tessera/base/process/output_stream.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::base {

OutputStream::OutputStream(int descriptor, int buffering) : descriptor_(descriptor) {
  constexpr cookie_io_functions_t functions{.read = nullptr, .write = write, .seek = nullptr, .close = nullptr};
  stream_ = ::fopencookie(this, "w", functions);
  if (stream_ == nullptr) throw Error("cannot create a stream: {}", std::generic_category().message(errno));
  std::setvbuf(stream_, nullptr, buffering, BUFSIZ);
}

OutputStream::~OutputStream() {
  std::fclose(stream_);
}

std::string OutputStream::failure() const {
  const int code = failure_;
  return code == 0 ? "" : std::generic_category().message(code);
}

// Called by stdio. Returns the number of bytes even after a failure, because otherwise writers would see an error.
ssize_t OutputStream::write(void* self, const char* data, std::size_t bytes) {
  auto* const stream = static_cast<OutputStream*>(self);
  if (const int code = stream->write_all(data, bytes); code != 0) stream->record_failure(code);
  return static_cast<ssize_t>(bytes);
}

// Returns 0 or the system's code of a failure.
int OutputStream::write_all(const char* data, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, data, bytes);
    if (written >= 0) {
      data += written;
      bytes -= static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd reader{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&reader, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void OutputStream::record_failure(int code) {
  int none = 0;
  if (failure_.compare_exchange_strong(none, code) && on_failure_) on_failure_(failure());
}

}  // namespace tessera::base

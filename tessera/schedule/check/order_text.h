// Converts a call order (together.h) to text and back. Ranks send the text to ranks of other classes.
#pragma once
#include <string>

#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

std::string to_text(const CallOrder& order);
// Throws Error for a text that is not a result of to_text.
CallOrder call_order_of(const std::string& text);

}  // namespace tessera::schedule

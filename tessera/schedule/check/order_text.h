// A call order as text, for ranks of other classes.
#pragma once
#include <string>

#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

std::string to_text(const CallOrder& order);
// Errors (Error): a text that to_text does not write.
CallOrder call_order_of(const std::string& text);

}  // namespace tessera::schedule

// UTF-8 as Python's strings need it.
#pragma once

#include <string_view>

namespace fsdpctl {

// Surrogates as 3-byte sequences ("surrogatepass") are a fault unless allowed.
bool is_utf8(std::string_view text, bool allow_surrogates = false);

}  // namespace fsdpctl

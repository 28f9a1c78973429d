// Sizes and counts as people write and read them: "96 MiB", "1.5GiB", "1,048,576".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdpctl {

// Bytes of "4096", "64KiB", "1.5 GiB", "5GB" (decimal), "2 MB"; nullopt for anything else, zero and overflow included.
std::optional<uint64_t> parse_size(std::string_view text);
std::string size_text(uint64_t bytes);   // "17.5 GiB", "512 B"
std::string count_text(uint64_t count);  // "1,048,576"
// "1 file", "1,200 files"; `many` where it is not `one` with an s.
std::string count_text(uint64_t count, std::string_view one, std::string_view many = {});

}  // namespace fsdpctl

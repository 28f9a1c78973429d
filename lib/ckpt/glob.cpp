// glob_match of lib/ckpt/select.h.
#include "lib/ckpt/select.h"

namespace fsdpctl {
namespace {

// Matches the class at glob[at] ('[') against c. Returns the position after ']', or npos where the bracket never closes (then
// '[' is an ordinary character).
size_t match_class(std::string_view glob, size_t at, char c, bool& matched) {
  size_t i = at + 1;
  const bool negated = i < glob.size() && (glob[i] == '!' || glob[i] == '^');
  if (negated) ++i;
  bool in = false;
  for (const size_t first = i; i < glob.size() && (glob[i] != ']' || i == first); ++i) {
    const auto low = static_cast<unsigned char>(glob[i]);
    unsigned char high = low;
    if (i + 2 < glob.size() && glob[i + 1] == '-' && glob[i + 2] != ']') {
      high = static_cast<unsigned char>(glob[i + 2]);
      i += 2;
    }
    const auto u = static_cast<unsigned char>(c);
    in = in || (low <= u && u <= high);
  }
  if (i >= glob.size()) return std::string_view::npos;
  matched = in != negated;
  return i + 1;
}

}  // namespace

// Backtracks to the last star only, so it is linear in text times glob.
bool glob_match(std::string_view glob, std::string_view text) {
  constexpr size_t none = std::string_view::npos;
  size_t g = 0, t = 0, star = none, resume = 0;
  while (t < text.size()) {
    size_t next = none;   // where the glob goes on if it takes this character
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
      continue;
    }
    if (g < glob.size()) {
      bool matched = glob[g] == '?' || glob[g] == text[t];
      const size_t after = glob[g] == '[' ? match_class(glob, g, text[t], matched) : none;
      if (matched) next = after == none ? g + 1 : after;
    }
    if (next != none) {
      g = next;
      ++t;
    } else if (star != none) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace fsdpctl

#include "lib/ckpt/step_name.h"

#include <algorithm>
#include <iterator>

namespace fsdpctl {
namespace {

constexpr std::string_view kWords[] = {"checkpoint", "ckpt",      "step", "steps", "globalstep", "iter",    "iters",
                                       "iteration",  "it",        "epoch", "ep",   "ba",         "batch",   "update"};
constexpr std::string_view kEnding = ".ckpt";   // of Lightning's directories

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

size_t digits_at_end(std::string_view text) {
  return static_cast<size_t>(std::find_if_not(text.rbegin(), text.rend(), is_digit) - text.rbegin());
}

// Does a number after `text` count steps? After "llama-7b_step=" it does, after "full_rank" not.
bool counts_steps(std::string_view text) {
  if (!text.empty() && std::string_view("-_=").find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  const auto letters = static_cast<size_t>(std::find_if_not(text.rbegin(), text.rend(), is_letter) - text.rbegin());
  std::string word(text.substr(text.size() - letters));
  std::transform(word.begin(), word.end(), word.begin(), lower);
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
}

std::string without_zeros(std::string_view digits) {
  return std::string(digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1)));
}

bool smaller(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

}  // namespace

std::optional<StepName> parse_step_name(std::string_view name) {
  StepName step;
  std::string_view rest = name;
  if (rest.ends_with(kEnding)) rest.remove_suffix(kEnding.size());
  // What Lightning would save under a name that is taken becomes NAME-v1.
  std::string version;
  const size_t digits = digits_at_end(rest);
  if (digits > 0 && rest.substr(0, rest.size() - digits).ends_with("-v")) {
    version = without_zeros(rest.substr(rest.size() - digits));
    rest.remove_suffix(digits + 2);
  }
  if (digits_at_end(rest) == 0) return std::nullopt;

  bool counted = false;   // the number before
  for (size_t i = 0; i < rest.size();) {
    const size_t begin = i;
    while (i < rest.size() && is_digit(rest[i]) == is_digit(rest[begin])) ++i;
    const std::string_view run = rest.substr(begin, i - begin);
    if (is_digit(run[0])) counted = run.size() == rest.size() || counts_steps(rest.substr(0, begin));
    if (is_digit(run[0]) && counted) {
      step.numbers.push_back(without_zeros(run));
      step.series += '#';
    } else {
      step.series += run;
    }
  }
  if (!counted) return std::nullopt;
  if (name.ends_with(kEnding)) step.series += kEnding;
  if (!version.empty()) step.numbers.push_back(std::move(version));
  return step;
}

bool earlier(const StepName& a, const StepName& b) {
  return std::lexicographical_compare(a.numbers.begin(), a.numbers.end(), b.numbers.begin(), b.numbers.end(), smaller);
}

}  // namespace fsdpctl

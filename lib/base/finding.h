// What is wrong, and where: the one vocabulary for errors, warnings and verify's findings.
//
// A Finding is a value. An Error is a Finding that ends the operation, with the process exit code
// that it maps to. Both are printed by one place (tools/printer) in the form
//
//     fsdpctl: error: <what>
//       where: <location>
//       saw:   expected <expected>, found <found>
//       try:   <hint>
//
// `what` is static text in lower case without a full stop, so that it can be searched for; values go
// into the other fields. Thread-safe as any value type is.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdpctl {

// Process exit codes. On the command line they are a contract: never renumber.
enum class Exit : int {
  ok = 0,
  different = 1,    // diff found differences, verify --against found an incompatibility
  usage = 2,        // flags, config, output exists
  damaged = 3,      // damaged or incomplete checkpoint
  refused = 4,      // ambiguous, does not fit, or would lose something; the hint names the flag
  unsupported = 5,  // not recognised, not supported, or unsafe content
  failed = 6,       // not found, I/O, no space, memory limit, another rank failed
  interrupted = 130,
  terminated = 143,
};

enum class Severity : uint8_t { note, warning, error };

// The narrowest known place. Empty members are unknown or do not apply.
struct Location {
  std::string path;                                      // file, relative to the checkpoint
  std::string key;                                       // tensor or value: path in the tree
  std::optional<std::pair<uint64_t, uint64_t>> range;    // half-open byte range in `path`
  std::optional<uint64_t> offset;                        // byte offset in `path` (pickle opcodes)
  int rank = -1;

  // "a/b.distcp, model.w [512, 1024), offset 17, rank 3"; empty when nothing is known.
  std::string text() const;
};

struct Finding {
  Severity severity = Severity::error;
  Exit code = Exit::damaged;
  std::string what;
  Location where;
  std::string expected;
  std::string found;
  std::string hint;

  // Builder: `throw Error(Exit::damaged, "record cut short").at("x.pt").expected_found("8", "4")`.
  Finding& at(std::string path);
  Finding& key(std::string key);
  Finding& range(uint64_t begin, uint64_t end);
  Finding& offset(uint64_t offset);
  Finding& saw(std::string expected, std::string found);
  Finding& found_only(std::string found);
  Finding& try_(std::string hint);

  // "expected 8, found 4", "found 4", or empty.
  std::string saw_text() const;
};

// The only exception type of the project.
class Error : public std::exception {
 public:
  Error(Exit code, std::string what);
  explicit Error(Finding finding);

  const char* what() const noexcept override { return text_.c_str(); }  // "what (where; saw)"
  Exit code() const { return finding_.code; }
  const Finding& finding() const { return finding_; }

  // Context added on the way up: sets `path` or `key` only where still unknown.
  Error& in_file(std::string_view path);
  Error& in_tensor(std::string_view key);

  // The builder again, on an exception.
  Error&& at(std::string path) &&;
  Error&& key(std::string key) &&;
  Error&& range(uint64_t begin, uint64_t end) &&;
  Error&& offset(uint64_t offset) &&;
  Error&& saw(std::string expected, std::string found) &&;
  Error&& found_only(std::string found) &&;
  Error&& try_(std::string hint) &&;

 private:
  void refresh();
  Finding finding_;
  std::string text_;
};

// Receives findings that do not end the operation. In `strict` mode (every command but verify) a
// finding of severity error is thrown as an Error; otherwise it is kept and the reader goes on as
// well as it can. Not thread-safe.
class FindingSink {
 public:
  explicit FindingSink(bool strict = true) : strict_(strict) {}
  void report(Finding finding);   // throws Error when strict and severity is error
  bool strict() const { return strict_; }
  const std::vector<Finding>& all() const { return findings_; }
  bool has_errors() const;

 private:
  bool strict_;
  std::vector<Finding> findings_;
};

Finding warning(std::string what);
Finding note(std::string what);
Finding error(Exit code, std::string what);

}  // namespace fsdpctl

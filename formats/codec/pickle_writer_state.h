// The state of a PickleWriter, shared by pickle_writer.cpp (opcodes) and pickle_value_writer.cpp (values).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/codec/pickle_writer.h"
#include "lib/base/arena.h"

namespace fsdpctl {

struct PickleWriter::State {
  State(std::string& output, TensorEmitter& tensors) : out(output), emitter(tensors) {}

  // What a memo map holds of something that is not in the memo.
  static constexpr uint32_t kOnce = UINT32_MAX - 1;      // occurs once, as far as is known
  static constexpr uint32_t kNotYet = UINT32_MAX;        // occurs again: to be memoised when it is written
  static bool is_memoised(uint32_t entry) { return entry < kOnce; }

  struct PairHash {
    size_t operator()(const std::pair<std::string_view, std::string_view>& p) const {
      const std::hash<std::string_view> hash;
      return hash(p.first) * 31 + hash(p.second);
    }
  };

  std::string& out;
  TensorEmitter& emitter;
  uint32_t next_id = 0;
  int depth = 0;                         // nesting of value()
  Arena arena;                           // the texts in the maps below
  std::unordered_map<std::string_view, uint32_t> strings;
  std::unordered_map<std::pair<std::string_view, std::string_view>, uint32_t, PairHash> globals;
  std::unordered_map<const void*, uint32_t> nodes;       // of the tree at hand: those that may be shared

  void plan(const Value& v);             // counts what occurs more than once
  void plan_inside(const Value& v);
  void plan_entries(const std::vector<Entry>& entries);
  uint32_t* memo_of(const Value& v);     // its entry in `nodes`, null where it has none
};

}  // namespace fsdpctl

#include "formats/sharding_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "lib/base/box.h"

namespace fsdpctl {
namespace {

class ShardingInfoEvents : public JsonEvents {
 public:
  ShardingInfoEvents(ShardingInfo& info, Arena& arena) : info_(info), arena_(arena) {}

  void begin_object() override {
    if (place_ != Place::start && place_ != Place::before_tensor) unexpected("an object");
    place_ = place_ == Place::start ? Place::names : Place::tensor;
  }
  void key(std::string& text) override {
    if (place_ == Place::names) {
      name_ = std::move(text);
      place_ = Place::before_tensor;
    } else if (text == "saved_offsets") {
      offsets_.clear();
      place_ = Place::before_offsets;
    } else {
      unexpected(text);
    }
  }
  void begin_array() override {
    if (place_ != Place::before_offsets) unexpected("an array");
    place_ = Place::offsets;
  }
  void number(uint64_t value) override {
    if (place_ != Place::offsets) unexpected("a number");
    offsets_.push_back(static_cast<int64_t>(value));
  }
  void end_array() override {
    place_ = Place::tensor;
    if (!info_.emplace(name_, arena_.store(Dims(offsets_))).second) {
      throw Error(Exit::unsupported, "name occurs twice in the sharding information").key(name_);
    }
  }
  void end_object() override { place_ = place_ == Place::tensor ? Place::names : Place::done; }

 private:
  enum class Place : uint8_t { start, names, before_tensor, tensor, before_offsets, offsets, done };
  ShardingInfo& info_;
  Arena& arena_;
  Place place_ = Place::start;
  std::string name_;
  std::vector<int64_t> offsets_;
};

// Takes a literal or a number of at least five digits off the front of a file name.
bool take(std::string_view& text, std::string_view literal) {
  if (!text.starts_with(literal)) return false;
  text.remove_prefix(literal.size());
  return true;
}
bool take(std::string_view& text, uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || digits < 5) return false;
  text.remove_prefix(digits);
  return true;
}

}  // namespace

ShardingInfo read_sharding_info(const SafetensorsHeader& header, const std::string& file_name, Arena& arena) {
  ShardingInfo info;
  const auto entry = std::find_if(header.metadata.begin(), header.metadata.end(),
                                  [](const auto& e) { return e.first == kShardingInfoKey; });
  if (entry == header.metadata.end()) return info;
  info.reserve(header.entries.size());
  ShardingInfoEvents events(info, arena);
  try {
    read_json(entry->second, file_name, events);
  } catch (const Error& e) {   // its offsets count from the start of the text: of no use in the file
    Finding finding = e.finding();
    finding.where.offset.reset();
    if (finding.where.key.empty()) finding.where.key = kShardingInfoKey;
    throw Error(std::move(finding));
  }
  return info;
}

void begin_sharding_info(std::string& out) { out += '{'; }

void append_sharding_info(std::string_view fqn, Dims offset, std::string& out) {
  append_json_string(fqn, out);
  fmt::format_to(std::back_inserter(out), ": {{\"saved_offsets\": {}}}, ", dims_text(offset));
}

void end_sharding_info(std::string& out) {
  if (out.ends_with(", ")) out.resize(out.size() - 2);
  out += '}';
}

bool parse_shard_name(std::string_view file_name, ShardName& out) {
  return take(file_name, "shard-") && take(file_name, out.shard) && take(file_name, "-model-") && take(file_name, out.part) &&
         take(file_name, "-of-") && take(file_name, out.parts) && file_name == ".safetensors" && out.shard > 0;
}

std::string shard_name(uint32_t shard) { return fmt::format("shard-{:05d}-model-00001-of-00001.safetensors", shard); }

}  // namespace fsdpctl

#include "formats/safetensors_index.h"

#include <fmt/format.h>

#include <iterator>
#include <unordered_map>
#include <unordered_set>

namespace fsdpctl {
namespace {

class IndexEvents : public JsonEvents {
 public:
  IndexEvents(SafetensorsIndex& index, Arena& arena) : index_(index), arena_(arena) {}

  void begin_object() override {
    switch (place_) {
      case Place::start: place_ = Place::sections; break;
      case Place::before_metadata: place_ = Place::metadata; break;
      case Place::before_map: place_ = Place::map; break;
      default: begin_skipped(); break;
    }
  }
  void begin_array() override { begin_skipped(); }
  void end_array() override { end_skipped(); }
  void end_object() override {
    if (depth_ > 0) return end_skipped();
    switch (place_) {
      case Place::sections: place_ = Place::done; break;
      default: place_ = Place::sections; break;   // metadata, weight_map
    }
  }

  void key(std::string& text) override {
    if (place_ == Place::sections) {
      if (!sections_.insert(text).second) twice(text);
      place_ = text == "metadata" ? Place::before_metadata : text == "weight_map" ? Place::before_map : Place::before_other;
    } else if (place_ == Place::map || place_ == Place::metadata) {
      key_ = std::move(text);
    }
  }

  void string(std::string& text) override {
    if (place_ == Place::map) add_tensor(text);
    else scalar(std::move(text));
  }
  void number(uint64_t value) override {
    if (place_ == Place::metadata && depth_ == 0 && key_ == "total_size") index_.total_size = value;
    else scalar(fmt::format("{}", value));
  }
  void other(std::string_view what) override { scalar(std::string(what)); }

  void check_complete() const {
    if (!sections_.count("weight_map")) throw Error(Exit::damaged, "index has no weight_map");
  }

 private:
  enum class Place : uint8_t { start, sections, before_metadata, metadata, before_map, map, before_other, done };

  void scalar(std::string text) {
    if (depth_ > 0) return;
    if (place_ == Place::metadata) index_.metadata.emplace_back(std::move(key_), std::move(text));
    else if (place_ == Place::before_other) place_ = Place::sections;
    else unexpected(text);
  }

  // Other sections, and lists or objects inside "metadata", have no meaning for tensors.
  void begin_skipped() {
    if (depth_ == 0 && place_ != Place::before_other && place_ != Place::metadata) unexpected("a list or object");
    ++depth_;
  }
  void end_skipped() {
    if (--depth_ == 0 && place_ == Place::before_other) place_ = Place::sections;
  }

  void add_tensor(const std::string& file) {
    const auto known = file_numbers_.try_emplace(file, static_cast<uint32_t>(index_.files.size()));
    if (known.second) index_.files.push_back(file);
    const std::string_view name = arena_.store(key_);
    if (!names_.insert(name).second) twice(key_);
    index_.tensors.push_back({name, known.first->second});
  }

  [[noreturn]] static void twice(const std::string& key) {
    throw Error(Exit::unsupported, "name occurs twice in the index").key(key);
  }

  SafetensorsIndex& index_;
  Arena& arena_;
  Place place_ = Place::start;
  uint64_t depth_ = 0;                     // of what is skipped
  std::string key_;
  std::unordered_set<std::string> sections_;
  std::unordered_set<std::string_view> names_;
  std::unordered_map<std::string, uint32_t> file_numbers_;
};

}  // namespace

SafetensorsIndex read_safetensors_index(const ReadAt& read, uint64_t file_size, const std::string& file_name, Arena& arena) {
  SafetensorsIndex index;
  IndexEvents events(index, arena);
  read_json(read, 0, file_size, file_name, events);
  try {
    events.check_complete();
  } catch (Error& e) {
    throw e.in_file(file_name);
  }
  return index;
}

void write_safetensors_index(const SafetensorsIndex& index, std::string& out) {
  fmt::format_to(std::back_inserter(out), "{{\n  \"metadata\": {{\n    \"total_size\": {}", index.total_size.value_or(0));
  for (const auto& [key, value] : index.metadata) {
    out += ",\n    ";
    append_json_string(key, out);
    out += ": ";
    append_json_string(value, out);
  }
  out += "\n  },\n  \"weight_map\": {";
  bool first = true;
  for (const IndexedTensor& tensor : index.tensors) {
    out += first ? "\n    " : ",\n    ";
    first = false;
    append_json_string(tensor.name, out);
    out += ": ";
    append_json_string(index.files[tensor.file], out);
  }
  out += "\n  }\n}\n";
}

}  // namespace fsdpctl

#include "tests/train/trace.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Trace::Trace(int world_size) {
  const std::string folder = test_data("lightrft/trace-w" + std::to_string(world_size));
  scalars_ = nlohmann::json::parse(read_all(folder + "/trace.json"));
  file_ = read_all(folder + "/trace.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file_.data(), sizeof(header));
  arrays_ = nlohmann::json::parse(file_.substr(sizeof(header), header));
  data_ = sizeof(header) + header;
}

std::string_view Trace::bytes_of(const std::string& name) const {
  if (!arrays_.contains(name)) return {};
  const size_t begin = arrays_[name]["data_offsets"][0], end = arrays_[name]["data_offsets"][1];
  return std::string_view(file_).substr(data_ + begin, end - begin);
}

double number(const nlohmann::json& hex) { return std::strtod(hex.get<std::string>().c_str(), nullptr); }

}  // namespace fsdpctl::train

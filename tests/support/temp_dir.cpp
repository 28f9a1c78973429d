#include "tests/support/temp_dir.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace fsdpctl {

TempDir::TempDir(Place place) {
  const std::filesystem::path memory = "/dev/shm";
  const bool in_memory = place == Place::memory && access(memory.c_str(), W_OK) == 0;
  std::string pattern = ((in_memory ? memory : std::filesystem::temp_directory_path()) / "fsdpctl-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void put_file(const std::string& path, std::string_view text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string get_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string test_data(const std::string& name) {
  const char* chosen = std::getenv("FSDPCTL_TEST_DATA");
  return (chosen ? chosen : std::string(FSDPCTL_SOURCE_DIR) + "/tests/data") + "/" + name;
}

std::string shared_fixtures() {
  const char* chosen = std::getenv("FSDPCTL_FIXTURES");
  const std::string path = chosen ? chosen : std::string(FSDPCTL_SOURCE_DIR) + "/../shared/fixtures";
  return std::filesystem::is_directory(path) ? path : std::string();
}

}  // namespace fsdpctl

// A temporary directory that is removed with the object, and paths that tests share.
#pragma once

#include <string>
#include <string_view>

namespace fsdpctl {

class TempDir {
 public:
  enum class Place { disk, memory };   // memory where the system has such a place: for tests that are not about disks
  explicit TempDir(Place place = Place::disk);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Writes a file, with its directories, without the syncing that lib/base does: tests make many.
void put_file(const std::string& path, std::string_view text);
std::string get_file(const std::string& path);         // whole; empty when there is none
std::string test_data(const std::string& name);        // tests/data/<name>, or below FSDPCTL_TEST_DATA
// ../shared/fixtures beside the repository (or FSDPCTL_FIXTURES); empty when absent.
std::string shared_fixtures();

}  // namespace fsdpctl

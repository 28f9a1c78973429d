// A temporary directory that is removed with the object, and paths that tests share.
#pragma once

#include <string>

namespace fsdpctl {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string test_data(const std::string& name);        // tests/data/<name>
// ../shared/fixtures beside the repository (or FSDPCTL_FIXTURES); empty when absent.
std::string shared_fixtures();

}  // namespace fsdpctl

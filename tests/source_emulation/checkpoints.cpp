#include "tests/source_emulation/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tests/source_emulation/lightrft.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::source {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> directories_by_age(const fs::path& save_dir) {
  std::vector<fs::path> all;
  if (!fs::exists(save_dir)) return all;
  for (const auto& entry : fs::directory_iterator(save_dir)) {
    if (entry.is_directory()) all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end(), [](const fs::path& a, const fs::path& b) { return fs::last_write_time(a) < fs::last_write_time(b); });
  return all;
}

}  // namespace

SavedFiles save_ckpt(const std::string& save_dir, int step, int ranks, const SaveParts& parts, size_t max_num, size_t room) {
  std::vector<fs::path> old = directories_by_age(save_dir);
  while (old.size() >= max_num) {   // on rank 0, before anybody writes
    if (old.empty()) throw PythonError("IndexError: list index out of range");
    fs::remove_all(old.front());
    old.erase(old.begin());
  }
  const std::string directory = save_dir + "/global_step" + std::to_string(step);
  SavedFiles files;
  const auto write = [&](const std::string& name) {
    if (room-- == 0) throw PythonError("OSError: [Errno 28] No space left on device");
    put_file(directory + "/" + name, "data");
    ++files.writers[name];
  };
  for (int rank = 0; rank < ranks; ++rank) {
    write("__" + std::to_string(rank) + "_0.distcp");
    if (parts.optimizer) write("optim_states/_rank" + std::to_string(rank));
    if (parts.scheduler) write("scheduler_state.pt");   // to the same path, whichever rank
    write("client_state.pt");
  }
  write(".metadata");
  return files;
}

Loaded load_ckpt(const std::string& save_dir) {
  int newest = -1;
  for (const fs::path& path : directories_by_age(save_dir)) {
    const std::string name = path.filename().string(), prefix = "global_step";
    int step = -1;
    if (name.starts_with(prefix)) std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    newest = std::max(newest, step);
  }
  Loaded loaded{"global_step" + std::to_string(newest), {"model"}, {}};
  const fs::path directory = fs::path(save_dir) / loaded.path;
  const auto take = [&](const char* part, const char* file) {
    if (fs::exists(directory / file)) {
      loaded.state.insert(part);
    } else {
      loaded.warnings.push_back(std::string("WARNING: no ") + part);
    }
  };
  take("optimizer", "optim_states");
  take("scheduler", "scheduler_state.pt");
  return loaded;
}

}  // namespace fsdpctl::source

#include "formats/unread_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/file.h"
#include "lib/base/shell_quoted.h"

namespace fsdpctl {

namespace {

constexpr std::string_view kReport = "other checkpoint files lie beside this one and are not read; each is opened by its name";

}  // namespace

bool is_unread_files_report(const Finding& finding) { return finding.what == kReport; }

bool is_other_checkpoint_file(std::string_view name) {
  constexpr std::array<std::string_view, 5> endings = {".bin", ".pt", ".pth", ".ckpt", ".distcp"};
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMost; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kMost ? text + fmt::format(" and {} more", names.size() - kMost) : text;
}

void report_unread_files(const Source& directory, const std::vector<std::string>& names, FindingSink& sink) {
  if (names.empty()) return;
  // The optimizer is what people miss.
  const auto missed = std::find_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("optim"); });
  const std::string& example = missed == names.end() ? names.front() : *missed;
  sink.report(warning(std::string(kReport))
                  .at(directory.path())
                  .found_only(some_names(names))
                  .try_("fsdpctl inspect " + shell_quoted(join_path(directory.path(), example))));
}

}  // namespace fsdpctl

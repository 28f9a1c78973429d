#include "tools/output_path.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>

#include "lib/base/file.h"
#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"
#include "lib/base/shell_quoted.h"
#include "tools/command_line.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

// Below this a match of a single file means "of this kind of file, perhaps": any ZIP archive, any pickle.
constexpr int kSureStrength = 90;
constexpr size_t kHead = 256;

// The real path of something that may not exist yet: its directory's, and its own name.
std::string future_path(const std::string& path) {
  if (stat_path(path).kind != FileKind::absent) return real_path(path);
  return join_path(real_path(parent_path(path)), base_name(path));
}

bool lies_in(const std::string& path, const std::string& directory) {
  if (directory == "/") return path != "/";
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

[[noreturn]] void refuse(const std::string& path, std::string expected, std::string found) {
  throw Error(Exit::usage, "what is there would be lost").at(path).saw(std::move(expected), std::move(found));
}

constexpr const char* kExpected = "nothing, an empty directory, a checkpoint, or what fsdpctl wrote";

// The strongest match of any format; 100 for what a format knows well enough to call it damaged.
int recognized_strength(Source& source, const FormatList& formats) {
  int strength = 0;
  for (const auto& format : formats) {
    try {
      if (const auto match = format->recognize(source)) strength = std::max(strength, match->strength);
    } catch (const Error& e) {
      if (e.code() == Exit::damaged) return 100;
    }
  }
  return strength;
}

bool has_manifest(const std::string& path, bool directory) {
  return stat_path(manifest_path(path, directory)).kind == FileKind::file;
}

// The files that a checkpoint consists of; none where it is too damaged to say.
std::set<std::string> files_of(const std::string& path, const FormatList& formats) {
  try {
    FindingSink sink(false);
    const Opened opened = open_checkpoint(formats, path, sink);
    return {opened.checkpoint.data_files.begin(), opened.checkpoint.data_files.end()};
  } catch (const Error&) {
    return {};
  }
}

// What lies beside a checkpoint (a tokenizer, another one, notes) would go with it.
void check_all_belongs(const std::string& path, const std::vector<DirectoryEntry>& entries, const FormatList& formats) {
  const std::set<std::string> read = files_of(path, formats);
  const auto belongs = [&](const std::string& name) {
    if (name == base_name(manifest_path(path, true)) || read.count(name) != 0) return true;
    return std::any_of(formats.begin(), formats.end(), [&](const auto& format) { return format->is_part(name); });
  };
  for (const DirectoryEntry& entry : entries) {
    if (!belongs(entry.name)) refuse(path, kExpected, fmt::format("a checkpoint, and beside it {}", entry.name));
  }
}

void check_directory(const std::string& path, const FormatList& formats) {
  const std::shared_ptr<Source> source = Source::open(path);
  const std::vector<DirectoryEntry> entries = source->entries();
  if (entries.empty()) return;
  const auto below = std::find_if(entries.begin(), entries.end(),
                                  [](const DirectoryEntry& e) { return e.kind == FileKind::directory; });
  if (below != entries.end()) refuse(path, kExpected, fmt::format("a directory that holds {}/", below->name));
  if (!has_manifest(path, true) && recognized_strength(*source, formats) == 0) {
    refuse(path, kExpected, fmt::format("a directory that holds {}", entries.front().name));
  }
  check_all_belongs(path, entries, formats);
}

void check_file(const std::string& path, uint64_t size, const FormatList& formats) {
  if (size == 0 || has_manifest(path, false)) return;
  if (recognized_strength(*Source::open(path), formats) >= kSureStrength) return;
  refuse(path, kExpected, "a file of " + size_text(size));
}

}  // namespace

void check_apart(const std::string& output, const std::string& input, const FormatList& formats) {
  const FileKind kind = stat_path(input).kind;
  if (kind == FileKind::absent) return;
  const bool part = kind == FileKind::file && std::any_of(formats.begin(), formats.end(), [&](const auto& format) {
                      return format->is_part(base_name(input));
                    });
  const std::string out = future_path(output), in = real_path(part ? parent_path(input) : input);
  if (out == in) throw Error(Exit::usage, "output is the input").at(output);
  if (lies_in(out, in)) throw Error(Exit::usage, "output lies inside the input").at(output);
  if (lies_in(in, out)) throw Error(Exit::usage, "input lies inside the output").at(output).found_only(input);
}

void check_parent(const std::string& output) {
  const std::string parent = parent_path(output);
  const FileKind kind = stat_path(parent).kind;
  if (kind == FileKind::directory) return;
  if (kind != FileKind::absent) throw Error(Exit::failed, "output's directory is no directory").at(parent);
  throw Error(Exit::failed, "output's directory does not exist").at(parent).try_("mkdir -p " + shell_quoted(parent));
}

void check_replaceable(const std::string& path, const FormatList& formats) {
  const FileStat there = stat_path(path);
  switch (there.kind) {
    case FileKind::absent:
      return;  // or a link that leads nowhere, and only the link is replaced
    case FileKind::directory:
      return check_directory(path, formats);
    case FileKind::file:
      return check_file(path, there.size, formats);
    case FileKind::other:
      refuse(path, kExpected, "a device, pipe or socket");
  }
}

void check_replaceable(const SmallFile& file) {
  check_parent(file.path);
  const std::string expected = "nothing, or " + file.kind;
  const FileStat there = stat_path(file.path);
  if (there.kind == FileKind::directory) refuse(file.path, expected, "a directory");
  if (there.kind == FileKind::other) refuse(file.path, expected, "a device, pipe or socket");
  if (there.kind == FileKind::absent || there.size == 0) return;
  std::string head(kHead, '\0');
  head.resize(FileHandle::open_read(file.path).read_some(0, std::as_writable_bytes(std::span(head))));
  if (!file.is_known(head)) refuse(file.path, expected, "another file of " + size_text(there.size));
}

void write_small_file(const SmallFile& file, std::string_view text) {
  check_replaceable(file);
  const std::string partial = fmt::format("{}.partial-{}", file.path, ::getpid());
  remove_tree(partial);  // of a process of that number that was killed here
  try {
    write_new_file(partial, text);
    const FileStat there = stat_path(file.path);
    if (there.kind == FileKind::absent && !there.is_link) {
      rename_new(partial, file.path);
    } else if (exchange(partial, file.path)) {
      remove_tree(partial);
    } else {
      throw Error(Exit::failed, "file system cannot replace a file in one step").at(file.path);
    }
  } catch (const Error&) {
    remove_tree(partial);
    throw;
  }
}

}  // namespace fsdpctl

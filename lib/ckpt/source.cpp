#include "lib/ckpt/source.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxOpen = 64;

bool is_below(std::string_view path, std::string_view directory) {
  if (directory == "/") return true;
  return path.size() > directory.size() && path.starts_with(directory) && path[directory.size()] == '/';
}

// Without "." and empty elements; nullopt where the name is absolute, empty or goes up.
std::optional<std::string> normalised(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos) return std::nullopt;
  std::string result;
  while (!name.empty()) {
    const std::string_view element = name.substr(0, name.find('/'));
    name.remove_prefix(std::min(name.size(), element.size() + 1));
    if (element == "..") return std::nullopt;
    if (element.empty() || element == ".") continue;
    if (!result.empty()) result += '/';
    result += element;
  }
  if (result.empty()) return std::nullopt;
  return result;
}

std::string safe_name(std::string_view name) {
  if (auto result = normalised(name)) return *std::move(result);
  throw Error(Exit::unsupported, "file name leads outside the checkpoint").found_only(std::string(name));
}

// Git LFS puts a few lines of text in the place of a file that was not fetched.
void refuse_lfs_pointer(const std::string& real_path, const std::string& name, uint64_t size) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  if (size < kBegin.size() || size > 1024) return;
  std::string text(kBegin.size(), '\0');
  FileHandle::open_read(real_path).read_some(0, std::as_writable_bytes(std::span(text)));
  if (text == kBegin) throw Error(Exit::damaged, "file is a Git LFS pointer, not the data").at(name).try_("git lfs pull");
}

// "<cache>/models--x/blobs" for "<cache>/models--x/snapshots/<revision>" and what is below it.
std::string hugging_face_blobs(const std::string& real_root) {
  const size_t at = (real_root + "/").rfind("/snapshots/");
  return at == std::string::npos || at + 11 >= real_root.size() ? std::string() : real_root.substr(0, at) + "/blobs";
}

}  // namespace

std::shared_ptr<Source> Source::open(const std::string& path, SourceOptions options) {
  const FileStat info = stat_path(path);
  if (info.kind == FileKind::absent) {
    throw Error(Exit::failed, "no such file or directory").at(path).found_only(info.is_link ? "a link that leads nowhere" : "");
  }
  if (info.kind == FileKind::other) {
    throw Error(Exit::failed, "not a regular file").at(path).saw("a file or a directory", "a device, pipe or socket");
  }
  std::shared_ptr<Source> source(new Source);
  source->path_ = path;
  while (source->path_.size() > 1 && source->path_.back() == '/') source->path_.pop_back();
  source->directory_ = info.kind == FileKind::directory;
  source->options_ = options;
  source->root_ = source->directory_ ? source->path_ : parent_path(source->path_);
  source->real_root_ = real_path(source->root_);
  source->blobs_ = hugging_face_blobs(source->real_root_);
  return source;
}

std::shared_ptr<Source> Source::in_memory(std::string name) {
  std::shared_ptr<Source> source(new Source);
  source->path_ = std::move(name);
  source->directory_ = source->in_memory_ = true;
  return source;
}

Source::~Source() = default;

std::vector<DirectoryEntry> Source::entries(std::string_view below) const {
  if (in_memory_) return {};
  if (!directory_) {
    const FileStat info = stat_path(path_);
    return {{base_name(path_), info.kind, info.size}};
  }
  std::string directory = root_;
  if (!below.empty()) {
    const std::string name = safe_name(below);
    directory = join_path(root_, name);
    if (!may_be_reached(real_path(directory))) {
      throw Error(Exit::unsupported, "link leads outside the checkpoint").at(name).found_only(real_path(directory));
    }
  }
  std::vector<DirectoryEntry> result;
  for (std::string& name : list_directory(directory)) {
    const FileStat info = stat_path(join_path(directory, name));
    result.push_back({std::move(name), info.kind, info.size});
  }
  return result;
}

bool Source::has(std::string_view name) const {
  const std::optional<std::string> safe = normalised(name);
  if (in_memory_ || !safe || (!directory_ && *safe != base_name(path_))) return false;
  return stat_path(join_path(root_, *safe)).kind == FileKind::file;
}

bool Source::may_be_reached(const std::string& real) const {
  if (options_.follow_links || real == real_root_ || is_below(real, real_root_)) return true;
  return !blobs_.empty() && parent_path(real) == blobs_;
}

std::string Source::resolve(const std::string& name) const {
  if (in_memory_) return {};
  if (!directory_) return name == base_name(path_) ? real_path(path_) : std::string();   // the argument may be a link
  const std::string path = join_path(root_, name);
  if (stat_path(path).kind != FileKind::file) return {};
  std::string real = real_path(path);
  if (!may_be_reached(real)) {
    throw Error(Exit::unsupported, "link leads outside the checkpoint")
        .at(name)
        .found_only("a link to " + real)
        .try_("--follow-links");
  }
  return real;
}

SourceIndex Source::append(Slot slot) {
  const size_t index = count_.load(std::memory_order_relaxed);
  if (index == blocks_.size() * kBlock) throw Error(Exit::unsupported, "checkpoint refers to too many files");
  std::unique_ptr<Block>& block = blocks_[index / kBlock];
  if (!block) block = std::make_unique<Block>();
  (*block)[index % kBlock] = std::move(slot);
  count_.store(index + 1, std::memory_order_release);
  return static_cast<SourceIndex>(index);
}

SourceIndex Source::add(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  const std::string safe = safe_name(name);
  SourceIndex index;
  if (const auto known = by_name_.find(safe); known != by_name_.end()) {
    index = known->second;
  } else {
    Slot slot;
    slot.real_path = resolve(safe);
    if (slot.real_path.empty()) {
      const bool exists = !in_memory_ && stat_path(join_path(root_, safe)).kind != FileKind::absent;
      throw Error(Exit::damaged, "file is missing").at(safe).found_only(exists ? "something that is no file" : "");
    }
    const FileStat info = stat_path(slot.real_path);
    refuse_lfs_pointer(slot.real_path, safe, info.size);
    slot.file = {safe, info.size, info.mtime_ns, false};
    index = append(std::move(slot));
    by_name_.emplace(file(index).name, index);
  }
  if (safe != name) {
    given_names_.push_back(std::make_unique<std::string>(name));
    by_name_.emplace(*given_names_.back(), index);
  }
  return index;
}

SourceIndex Source::add_spool(FileHandle file, std::string name) {
  const FileStat info = file.stat();
  Slot slot;
  slot.file = {std::move(name), info.size, info.mtime_ns, true};
  slot.open = std::make_shared<FileHandle>(std::move(file));
  const std::lock_guard lock(mutex_);
  return append(std::move(slot));
}

SourceIndex Source::append_named(Slot slot) {
  const std::lock_guard lock(mutex_);
  const SourceIndex index = append(std::move(slot));
  by_name_.emplace(file(index).name, index);
  return index;
}

SourceIndex Source::lend(std::string name, std::span<const std::byte> bytes) {
  static constexpr std::byte kNothing{};
  Slot slot;
  slot.file = {std::move(name), bytes.size(), 0, false};
  slot.lent = bytes.empty() ? &kNothing : bytes.data();
  return append_named(std::move(slot));
}

SourceIndex Source::elsewhere(std::string name, uint64_t size) {
  Slot slot;
  slot.file = {std::move(name), size, 0, false};
  return append_named(std::move(slot));
}

std::shared_ptr<FileHandle> Source::handle(SourceIndex index) const {
  const Slot& wanted = slot(index);
  {
    const std::lock_guard lock(mutex_);
    if (wanted.open) return wanted.open;
  }
  // Opening may take long (network file systems): others go on reading meanwhile.
  auto opened = std::make_shared<FileHandle>(FileHandle::open_read(wanted.real_path));
  const FileStat info = opened->stat();
  if (info.size != wanted.file.size || info.mtime_ns != wanted.file.mtime_ns) {
    throw Error(Exit::failed, "file changed while it was in use").at(wanted.file.name);
  }
  const std::lock_guard lock(mutex_);
  if (wanted.open) return wanted.open;
  if (opened_.size() == kMaxOpen) {
    slot(opened_.front()).open.reset();   // closes when its last reader is done
    opened_.erase(opened_.begin());
  }
  opened_.push_back(index);
  wanted.open = opened;
  return opened;
}

void Source::read(SourceIndex index, uint64_t offset, std::span<std::byte> out) const {
  const SourceFile& f = file(index);
  if (offset > f.size || out.size() > f.size - offset) {
    const uint64_t end = offset + std::min<uint64_t>(out.size(), std::numeric_limits<uint64_t>::max() - offset);
    throw Error(Exit::damaged, "file ends early")
        .at(f.name)
        .range(offset, end)
        .saw("at least " + std::to_string(end) + " bytes", std::to_string(f.size));
  }
  if (out.empty()) return;
  if (const Slot& lent = slot(index); lent.lent != nullptr) {
    std::memcpy(out.data(), lent.lent + offset, out.size());
    return;
  }
  if (in_memory_ && !f.spool) throw Error(Exit::failed, "bytes that another process has").at(f.name).range(offset, offset + out.size());
  if (handle(index)->read_some(offset, out) != out.size()) {
    throw Error(Exit::failed, "file changed while it was in use").at(f.name);
  }
}

std::string Source::read_all(SourceIndex index, uint64_t limit) const {
  const SourceFile& f = file(index);
  if (f.size > limit) {
    throw Error(Exit::unsupported, "file is larger than it can be")
        .at(f.name)
        .saw("at most " + std::to_string(limit) + " bytes", std::to_string(f.size));
  }
  std::string text(f.size, '\0');
  read(index, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

void Source::drop_cache(SourceIndex index) const {
  if (!in_memory_) handle(index)->drop_cache();
}

}  // namespace fsdpctl

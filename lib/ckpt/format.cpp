#include "lib/ckpt/format.h"

#include <fmt/format.h>

#include "lib/base/file.h"
#include "lib/base/shell_quoted.h"
#include "lib/ckpt/lock.h"
#include "lib/ckpt/run_directory.h"

namespace fsdpctl {

bool Format::is_part(std::string_view) const { return false; }

std::optional<Checkpoint> Format::open_whole(std::shared_ptr<Source> directory, const std::string&, FindingSink& sink) const {
  return open(std::move(directory), sink);
}

void Format::can_carry(const Checkpoint&, const Target&, FindingSink&) const {}

FilePlan Format::lay_out(const Checkpoint&, const Target&) const {
  throw Error(Exit::unsupported, "format can only be read").found_only(std::string(name()));
}

const Format* find_format(const FormatList& formats, std::string_view name) {
  for (const auto& format : formats) {
    if (format->name() == name) return format.get();
  }
  return nullptr;
}

std::optional<Recognized> recognize(const FormatList& formats, Source& source) {
  std::optional<Recognized> best;
  for (const auto& format : formats) {
    std::optional<Match> match = format->recognize(source);
    if (match && (!best || match->strength > best->match.strength)) best = Recognized{format.get(), *std::move(match)};
  }
  return best;
}

namespace {

Opened open_with(const Recognized& recognized, std::shared_ptr<Source> source, FindingSink& sink) {
  Opened opened;
  opened.format = recognized.format;
  opened.match = recognized.match;
  opened.checkpoint = recognized.format->open(std::move(source), sink);
  return opened;
}

// Taking one of two checkpoints that lie in one directory must not go unsaid.
void report_other_formats(const FormatList& formats, const Recognized& taken, Source& source, FindingSink& sink) {
  if (!source.is_directory()) return;
  for (const auto& format : formats) {
    if (format.get() == taken.format) continue;
    if (const std::optional<Match> match = format->recognize(source)) {
      sink.report(warning("directory holds a checkpoint of another format too; it is not read")
                      .at(source.path())
                      .found_only(fmt::format("{}: {}", format->name(), match->reason)));
    }
  }
}

// The directory that a part belongs to, where a format says so and recognises it.
std::optional<Opened> open_whole_of_part(const FormatList& formats, const std::string& path, FindingSink& sink,
                                         OpenOptions options) {
  const std::string name = base_name(path);
  for (const auto& format : formats) {
    if (!format->is_part(name)) continue;
    std::shared_ptr<Source> whole = Source::open(parent_path(path), {options.follow_links});
    std::optional<Match> match = format->recognize(*whole);
    if (!match) continue;
    std::optional<Checkpoint> checkpoint = format->open_whole(std::move(whole), name, sink);
    if (!checkpoint) continue;
    Opened opened;
    opened.format = format.get();
    opened.match = *std::move(match);
    opened.checkpoint = *std::move(checkpoint);
    return opened;
  }
  return std::nullopt;
}

// What no format could say better.
void refuse_obvious_damage(Source& source) {
  const SourceIndex file = source.add(base_name(source.path()));   // throws for Git LFS pointers
  if (source.file(file).size == 0) throw Error(Exit::damaged, "file is empty").at(source.file(file).name);
}

// Files of our own that are no checkpoints: what they are, and the command that reads them.
void refuse_own_files(const Source& source) {
  if (source.is_directory()) return;
  constexpr std::string_view kManifest = "fsdpctl.manifest.json", kManifestEnding = ".fsdpctl.json";
  const std::string& path = source.path();
  const bool inside = base_name(path) == kManifest;
  if (inside || (path.ends_with(kManifestEnding) && path.size() > kManifestEnding.size())) {
    const std::string of = inside ? parent_path(path) : path.substr(0, path.size() - kManifestEnding.size());
    throw Error(Exit::unsupported, "file is a manifest of fsdpctl, not a checkpoint").at(path)
        .found_only("the checksums of " + of).try_("fsdpctl verify --data " + shell_quoted(of));
  }
  std::string head(64, '\0');
  head.resize(FileHandle::open_read(path).read_some(0, std::as_writable_bytes(std::span(head))));
  if (looks_like_lock(head)) {
    throw Error(Exit::unsupported, "file is a lock file of fsdpctl, not a checkpoint").at(path)
        .found_only("names, dtypes and shapes that a checkpoint shall have").try_("fsdpctl verify --against " + shell_quoted(path) + " CKPT");
  }
}

// What was seen instead of a checkpoint.
std::string seen(const Source& source) {
  if (!source.is_directory()) return fmt::format("a file of {} bytes", source.entries().front().size);
  const std::vector<DirectoryEntry> entries = source.entries();
  if (entries.empty()) return "an empty directory";
  std::string text = "a directory with ";
  for (size_t i = 0; i < entries.size() && i < 3; ++i) text += (i == 0 ? "" : ", ") + entries[i].name;
  return entries.size() > 3 ? text + fmt::format(" and {} more", entries.size() - 3) : text;
}

}  // namespace

Opened open_checkpoint(const FormatList& formats, const std::string& path, FindingSink& sink, OpenOptions options) {
  std::shared_ptr<Source> source = Source::open(path, {options.follow_links});
  if (!source->is_directory()) {
    if (auto opened = open_whole_of_part(formats, source->path(), sink, options)) return *std::move(opened);
    refuse_obvious_damage(*source);
  }
  if (const auto recognized = recognize(formats, *source)) {
    report_other_formats(formats, *recognized, *source, sink);
    return open_with(*recognized, std::move(source), sink);
  }
  if (source->is_directory()) {
    if (auto opened = open_newest_step(formats, *source, sink, options)) return *std::move(opened);
  }
  refuse_own_files(*source);
  throw Error(Exit::unsupported, "not recognised as a checkpoint").at(path).found_only(seen(*source));
}

}  // namespace fsdpctl

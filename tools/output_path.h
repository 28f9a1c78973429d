// Where output may go. A mistyped path must never cost anything but a message: inputs stay as they are, and of what
// exists only what fsdpctl knows is replaced.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lib/ckpt/format.h"

namespace fsdpctl {

// Error(usage) where one of the two is or lies in the other, links resolved. An input that is a part of a checkpoint
// stands for the whole; one that does not exist is fine: opening it will say so.
void check_apart(const std::string& output, const std::string& input, const FormatList& formats);
// Error(failed) with the command that makes it.
void check_parent(const std::string& output);

// Error(usage) unless what --force would replace at `path` is nothing, empty, a checkpoint (a damaged one too) or was
// written by fsdpctl. A directory that has directories in it is more than a checkpoint, whatever else it holds.
void check_replaceable(const std::string& path, const FormatList& formats);

// Files that are no checkpoints: lock files, reports.
struct SmallFile {
  std::string path;
  std::string kind;                                     // "a lock file"
  std::function<bool(std::string_view head)> is_known;  // of the first 256 bytes: an older one of this kind
};
// Error(usage) unless nothing is there, an empty file, or an older one of its kind; Error(failed) as check_parent.
void check_replaceable(const SmallFile& file);
// Writes it so that it appears whole and in one step. Checks again.
void write_small_file(const SmallFile& file, std::string_view text);

}  // namespace fsdpctl

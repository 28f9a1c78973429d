// Annotations: texts by name that a file has beside the tree (safetensors' `__metadata__`, text attributes of HDF5's root), and what becomes
// of them. They are facts of the checkpoint whose names begin with "metadata.".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

using Annotation = std::pair<std::string, std::string>;   // name, text

std::vector<Annotation> annotations(const Checkpoint& checkpoint);   // in order
void add_annotation(Checkpoint& checkpoint, std::string_view name, std::string text);

// `format` of a safetensors source says which library the file is for: it goes with the file, not with its content.
inline constexpr std::string_view kFormatTag = "format";
bool is_format_tag(const Checkpoint& checkpoint, std::string_view name);

// A warning for each annotation, for Format::can_carry of formats that have no place for them.
void report_lost_annotations(const Checkpoint& checkpoint, FindingSink& sink);
// The same for one.
void report_lost_annotation(const Annotation& annotation, FindingSink& sink);

}  // namespace fsdpctl

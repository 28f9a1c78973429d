#include "formats/annotations.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kPrefix = "metadata.";

}  // namespace

std::vector<Annotation> annotations(const Checkpoint& checkpoint) {
  std::vector<Annotation> found;
  for (const auto& [name, text] : checkpoint.facts) {
    if (name.starts_with(kPrefix)) found.emplace_back(name.substr(kPrefix.size()), text);
  }
  return found;
}

void add_annotation(Checkpoint& checkpoint, std::string_view name, std::string text) {
  checkpoint.facts.emplace_back(std::string(kPrefix) + std::string(name), std::move(text));
}

bool is_format_tag(const Checkpoint& checkpoint, std::string_view name) {
  return name == kFormatTag && (checkpoint.format == "safetensors" || checkpoint.format == "hf-dcp");
}

void report_lost_annotations(const Checkpoint& checkpoint, FindingSink& sink) {
  for (const Annotation& annotation : annotations(checkpoint)) {
    if (!is_format_tag(checkpoint, annotation.first)) report_lost_annotation(annotation, sink);
  }
}

void report_lost_annotation(const Annotation& annotation, FindingSink& sink) {
  constexpr size_t shown = 80;
  const std::string& text = annotation.second;
  sink.report(warning("metadata entry is left out: the output has no place for it").key("__metadata__." + annotation.first)
                  .found_only(text.size() <= shown ? text : text.substr(0, shown) + "..."));
}

}  // namespace fsdpctl

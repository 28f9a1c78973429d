#include "formats/torch.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch_file.h"

namespace fsdpctl {
namespace {

// The first member of an archive as PyTorch writes it.
bool begins_with_pickle(Bytes head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  return text.substr(0, 300).find("/data.pkl") != std::string_view::npos;
}

std::optional<Match> recognize_file(Source& source) {
  const SourceIndex index = source.add(source.entries().front().name);
  std::vector<std::byte> head(std::min<uint64_t>(source.file(index).size, kTorchHead));
  source.read(index, 0, head);
  const auto container = torch_container(head);
  if (!container) return std::nullopt;
  switch (*container) {
    case TorchContainer::zip:
      if (begins_with_pickle(head)) return Match{95, "ZIP archive that begins with data.pkl"};
      return Match{50, "ZIP archive"};
    case TorchContainer::legacy: return Match{95, "torch's magic number in a pickle"};
    case TorchContainer::pickle: return Match{20, "pickle"};
    case TorchContainer::tar: return Match{40, "tar archive, as torch 0.1 wrote"};
    case TorchContainer::preview: return Match{90, "PYTORCH1"};
  }
  return std::nullopt;
}

class TorchFormat : public Format {
 public:
  std::string_view name() const override { return "torch"; }

  std::optional<Match> recognize(Source& source) const override {
    return source.is_directory() ? std::nullopt : recognize_file(source);
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override {
    Checkpoint checkpoint;
    checkpoint.format = name();
    checkpoint.source = std::move(source);
    Source& files = *checkpoint.source;
    const std::string file = files.entries().front().name;
    checkpoint.metadata_file = file;
    checkpoint.data_files = {file};
    checkpoint.tree = read_torch_file(checkpoint, files.add(file), 0, sink, &checkpoint.format_detail);
    checkpoint.finish(sink);
    return checkpoint;
  }

  Capabilities capabilities() const override { return {}; }
};

}  // namespace

std::unique_ptr<Format> torch_format() { return std::make_unique<TorchFormat>(); }

}  // namespace fsdpctl

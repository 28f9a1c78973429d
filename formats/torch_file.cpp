#include "formats/torch_file.h"

#include <algorithm>

#include "formats/codec/torch_archive.h"

namespace fsdpctl {

std::optional<TorchContainer> torch_container(Bytes head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.starts_with("PK\3\4")) return TorchContainer::zip;
  if (text.starts_with("PYTORCH1")) return TorchContainer::preview;
  if (text.size() > 262 && text.substr(257, 5) == "ustar") return TorchContainer::tar;
  if (text.size() < 2 || text[0] != '\x80' || text[1] < 1 || text[1] > 5) return std::nullopt;
  // LONG1 of ten bytes, after PROTO and perhaps FRAME.
  constexpr std::string_view kMagic("\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19", 12);
  return text.substr(0, 32).find(kMagic) == std::string_view::npos ? TorchContainer::pickle : TorchContainer::legacy;
}

Value read_torch_file(Checkpoint& checkpoint, SourceIndex source, int rank, FindingSink& sink, std::string* detail) {
  const SourceFile& file = checkpoint.source->file(source);
  std::vector<std::byte> head(std::min<uint64_t>(file.size, kTorchHead));
  checkpoint.source->read(source, 0, head);
  const auto container = torch_container(head);
  if (!container) throw Error(Exit::damaged, "file was not written by torch.save").at(file.name);
  switch (*container) {
    case TorchContainer::zip: {
      TorchArchiveFacts facts;
      Value tree = read_torch_archive(checkpoint, source, 0, file.size, rank, sink, &facts);
      if (detail) *detail = "ZIP, " + facts.written_by + (facts.big_endian ? ", big-endian" : "") + (facts.deflated > 0 ? ", compressed" : "");
      return tree;
    }
    case TorchContainer::legacy:
    case TorchContainer::pickle:   // whose magic number is what is wrong with it
      if (detail) *detail = "legacy stream";
      return read_torch_legacy(checkpoint, source, rank, sink);
    case TorchContainer::tar:
      throw Error(Exit::unsupported, "tar files of torch 0.1 are not supported").at(file.name);
    case TorchContainer::preview:
      throw Error(Exit::unsupported, "preview archives of torch 1.x development are not supported").at(file.name);
  }
  return {};
}

}  // namespace fsdpctl

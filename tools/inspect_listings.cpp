#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/placement.h"
#include "tools/inspect_command.h"
#include "tools/size_text.h"
#include "tools/table.h"
#include "tools/value_text.h"

namespace fsdpctl {
namespace {

std::vector<int64_t> numbers(Dims dims) {
  return {dims.begin(), dims.end()};
}

Json tensor_fields(const Inspected& inspected, const LeafInfo& leaf) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  const TensorInfo& info = checkpoint.tensors[leaf.tensor];
  Json fields = {{"key", leaf.path},
                 {"part", part_name(leaf.part)},
                 {"fqn", leaf.fqn},
                 {"field", leaf.field},
                 {"dtype", dtype_name(info.dtype)},
                 {"shape", numbers(info.shape)},
                 {"bytes", checkpoint.bytes_of(leaf.tensor)},
                 {"placement", placement_text(stored_placement(checkpoint, leaf.tensor))}};
  if (leaf.alias) fields["alias_of"] = info.key;
  if (!inspected.sums.empty()) fields["crc64"] = hex64(inspected.sums[leaf.tensor].crc64);
  if (!inspected.sha256.empty()) fields["sha256"] = inspected.sha256[leaf.tensor];
  return fields;
}

// A table, or the line that says why there is none.
void print_table(const Table& table, std::string_view things, const InspectOptions& options, Printer& printer) {
  if (printer.json()) return;
  printer.text("");
  if (!table.empty()) return table.print(printer);
  printer.text(options.name.empty() ? fmt::format("no {}", things)
                                    : fmt::format("no {} match --name {}", things, visible(options.name)));
}

void print_tensors(const Inspected& inspected, const InspectOptions& options, Printer& printer) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  std::vector<std::string> head = {"tensor", "dtype", "shape", "bytes", "placement"};
  if (options.fingerprint) head.push_back("crc64");
  if (options.sha256) head.push_back("sha256");
  Table table(std::move(head));
  for (const LeafInfo& leaf : inspected.parts.leaves) {
    if (leaf.tensor == kNoTensor || !name_matches(options, leaf)) continue;
    if (printer.closed()) return;
    if (printer.json()) {
      printer.record("tensor", tensor_fields(inspected, leaf));
      continue;
    }
    const TensorInfo& info = checkpoint.tensors[leaf.tensor];
    std::vector<std::string> row = {
        shown_key(leaf.path), std::string(dtype_name(info.dtype)), dims_text(info.shape),
        size_text(checkpoint.bytes_of(leaf.tensor)),
        leaf.alias ? "alias of " + shown_key(info.key) : placement_text(stored_placement(checkpoint, leaf.tensor))};
    if (options.fingerprint) row.push_back(inspected.sums.empty() ? "" : hex64(inspected.sums[leaf.tensor].crc64));
    if (options.sha256) row.push_back(inspected.sha256[leaf.tensor]);
    table.add(std::move(row));
  }
  print_table(table, "tensors", options, printer);
}

void print_pieces(const Inspected& inspected, const InspectOptions& options, Printer& printer) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  Table table({"tensor", "box", "rank", "file", "offset", "length"});
  for (const LeafInfo& leaf : inspected.parts.leaves) {
    if (leaf.tensor == kNoTensor || leaf.alias || !name_matches(options, leaf)) continue;
    for (const Piece& piece : checkpoint.pieces_of(leaf.tensor)) {
      if (printer.closed()) return;
      const std::string& file = checkpoint.source->file(piece.source).name;
      if (printer.json()) {
        printer.record("piece", {{"key", leaf.path},
                                 {"box", {{"offset", numbers(piece.box.offset)}, {"size", numbers(piece.box.size)}}},
                                 {"rank", piece.rank},
                                 {"path", file},
                                 {"offset", piece.offset},
                                 {"length", piece.length},
                                 {"stored", piece.encoding == Encoding::raw ? "raw" : "item"}});
        continue;
      }
      table.add({shown_key(leaf.path), box_text(piece.box), piece.rank < 0 ? "-" : std::to_string(piece.rank), file,
                 std::to_string(piece.offset), std::to_string(piece.length)});
    }
  }
  print_table(table, "pieces of tensors", options, printer);
}

Json group_fields(const OptimizerInfo& optimizer, size_t index) {
  const OptimizerGroup& group = optimizer.groups[index];
  Json fields = Json::object();
  for (const auto& field : group.fields) {
    fields[std::string(field.first)] = Json::parse(value_to_json(*field.second, JsonForm::shown));
  }
  return {{"optimizer", optimizer.path}, {"index", index}, {"fields", std::move(fields)}, {"params", group.params}};
}

void print_group(const Inspected& inspected, const OptimizerInfo& optimizer, size_t index, Printer& printer) {
  if (printer.json()) return printer.record("group", group_fields(optimizer, index));
  const OptimizerGroup& group = optimizer.groups[index];
  std::string text;
  for (const auto& field : group.fields) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field.first,
                        value_text(*field.second, inspected.opened.checkpoint));
  }
  printer.text("");
  printer.text(printer.paint(
      Style::strong, fmt::format("{}group {}", optimizer.path.empty() ? "" : visible(optimizer.path) + " ", index)));
  printer.text("  " + visible(text));
  for (const std::string_view param : group.params) printer.text("  " + visible(param));
}

void print_extra(const Inspected& inspected, const InspectOptions& options, Printer& printer) {
  Table table({"value", "content"});
  for (const LeafInfo& leaf : inspected.parts.leaves) {
    // Random states are tensors, and nobody looks for them among the weights. In JSON they have their record there.
    if (leaf.tensor != kNoTensor && (printer.json() || leaf.part != Part::extra)) continue;
    if (!name_matches(options, leaf)) continue;
    if (printer.closed()) return;
    if (printer.json()) {
      printer.record("value", {{"key", leaf.path},
                               {"part", part_name(leaf.part)},
                               {"fqn", leaf.fqn},
                               {"field", leaf.field},
                               {"value", Json::parse(value_to_json(*leaf.value, JsonForm::shown))}});
    } else {
      table.add({shown_key(leaf.path), value_text(*leaf.value, inspected.opened.checkpoint)});
    }
  }
  print_table(table, "values", options, printer);
}

}  // namespace

void print_listings(const Inspected& inspected, const InspectOptions& options, Printer& printer) {
  // Sums without a list would be sums of nothing one can see.
  const bool named_sums = (options.fingerprint && !options.name.empty()) || options.sha256;
  if (options.tensors || named_sums) print_tensors(inspected, options, printer);
  if (options.pieces) print_pieces(inspected, options, printer);
  if (options.groups) {
    for (const OptimizerInfo& optimizer : inspected.parts.optimizers) {
      for (size_t i = 0; i < optimizer.groups.size(); ++i) print_group(inspected, optimizer, i, printer);
    }
  }
  if (options.extra) print_extra(inspected, options, printer);
}

}  // namespace fsdpctl

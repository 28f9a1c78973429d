#include "tests/support/made_format.h"

#include "lib/base/value_json.h"
#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

Value row_value(const MadeRow& row) {
  std::vector<Value> dims;
  for (const int64_t d : row.shape) dims.push_back(Value::integer(d));
  return list({Value::string(dtype_name(row.dtype)), list(std::move(dims)), Value::integer(row.file), Value::integer(static_cast<int64_t>(row.offset))});
}

// One file of the format: text first (may be empty), then tensors.
class MadeLayout : public FileLayout {
 public:
  MadeLayout(std::string path, std::string text, const Checkpoint& checkpoint, const std::vector<MadeRow>& rows)
      : FileLayout(std::move(path)), text_(std::move(text)), checkpoint_(checkpoint), rows_(rows) {
    offsets_.push_back(text_.size());
    for (const MadeRow& row : rows_) offsets_.push_back(offsets_.back() + checkpoint.bytes_of(row.tensor));
  }
  uint64_t size() const override { return offsets_.back(); }
  uint64_t item_count() const override { return rows_.size() + 1; }
  uint64_t item_offset(uint64_t item) const override { return item == 0 ? 0 : offsets_[item - 1]; }
  void segments(uint64_t item, SegmentList& out) const override {
    out.segments.clear();
    Segment segment;
    segment.offset = item_offset(item);
    segment.length = item == 0 ? text_.size() : offsets_[item] - offsets_[item - 1];
    if (item > 0) {
      segment.kind = Segment::Kind::tensor;
      segment.tensor = rows_[item - 1].tensor;
      const Dims shape = checkpoint_.tensors[segment.tensor].shape;
      out.dims.assign(shape.size(), 0);
      segment.box = {out.dims, shape};
    }
    if (segment.length > 0) out.segments.push_back(segment);
  }
  void render(uint64_t, const Segment&, const ItemCrcs*, std::string& out) const override { out += text_; }

 private:
  std::string text_;
  const Checkpoint& checkpoint_;
  std::vector<MadeRow> rows_;
  std::vector<uint64_t> offsets_;
};

std::string with_length(const std::string& json) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return text + json;
}

}  // namespace

std::optional<Match> MadeFormat::recognize(Source& source) const {
  if (source.is_directory() == single_ || (!single_ && !source.has("index"))) return std::nullopt;
  return Match{50, "made"};
}

Capabilities MadeFormat::capabilities() const {
  Capabilities c;
  c.writes = true;
  c.single_file = single_;
  return c;
}

void MadeFormat::can_carry(const Checkpoint&, const Target&, FindingSink& sink) const {
  if (carries) carries(sink);
}

FilePlan MadeFormat::lay_out(const Checkpoint& checkpoint, const Target& target) const {
  std::vector<MadeRow> rows;
  uint64_t filled[2] = {0, 0};
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    const TensorInfo& info = checkpoint.tensors[t];
    const int64_t file = single_ ? 0 : t % 2;
    rows.push_back({t, info.dtype, {info.shape.begin(), info.shape.end()}, file, filled[file]});
    filled[file] += checkpoint.bytes_of(t);
  }
  Value tree = checkpoint.tree;
  if (tamper) tamper(tree, rows);
  std::vector<Value> table;
  for (const MadeRow& row : rows) table.push_back(row_value(row));
  const std::string json = value_to_json(dict({{"tree", tree}, {"rows", list(std::move(table))}}), JsonForm::stored);
  FilePlan plan;
  if (single_) {
    plan.push_back(std::make_unique<MadeLayout>(target.file_name, with_length(json), checkpoint, rows));
    return plan;
  }
  std::vector<MadeRow> parts[2];
  for (const MadeRow& row : rows) parts[row.file].push_back(row);
  plan.push_back(std::make_unique<MadeLayout>("index", json, checkpoint, std::vector<MadeRow>()));
  for (int i = 0; i < 2; ++i) plan.push_back(std::make_unique<MadeLayout>("part-" + std::to_string(i) + ".bin", "", checkpoint, parts[i]));
  return plan;
}

Checkpoint MadeFormat::open(std::shared_ptr<Source> source, FindingSink& sink) const {
  Checkpoint c;
  c.format = "made";
  c.source = source;
  c.metadata_file = single_ ? source->entries().front().name : "index";
  const SourceIndex first = source->add(c.metadata_file);
  std::string json = source->read_all(first, uint64_t{1} << 30);
  std::vector<SourceIndex> files = {first};
  uint64_t base = 0;
  if (single_) {
    if (json.size() < 8) throw Error(Exit::damaged, "made file is too short");
    uint64_t length = 0;
    for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(json[i]);
    json = json.substr(8, length);
    base = 8 + length;
    c.data_files = {c.metadata_file};
  } else {
    files = {source->add("part-0.bin"), source->add("part-1.bin")};
    c.data_files = {"index", "part-0.bin", "part-1.bin"};
  }
  const Value index = value_from_json(json, c.metadata_file);
  c.tree = *index.find("tree");
  for (const Value& row : index.find("rows")->items()) {
    std::vector<int64_t> shape;
    for (const Value& d : row.items()[1].items()) shape.push_back(d.as_integer());
    const DType dtype = *dtype_from_name(row.items()[0].text());
    Piece piece;
    piece.tensor = c.add_tensor(dtype, shape);
    piece.rank = 0;
    piece.stored = dtype;
    piece.box = whole_box(*c.arena, c.tensors[piece.tensor].shape);
    piece.source = files[static_cast<size_t>(row.items()[2].as_integer())];
    piece.offset = base + static_cast<uint64_t>(row.items()[3].as_integer());
    c.add_piece(piece);
  }
  c.finish(sink);
  return c;
}

}  // namespace fsdpctl

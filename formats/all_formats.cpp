#include "formats/all_formats.h"

#include "formats/torch.h"

namespace fsdpctl {

FormatList all_formats() {
  FormatList formats;
  formats.push_back(torch_format());
  return formats;
}

}  // namespace fsdpctl

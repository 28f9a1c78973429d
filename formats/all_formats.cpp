#include "formats/all_formats.h"

#include "formats/dcp.h"
#include "formats/torch.h"

namespace fsdpctl {

FormatList all_formats() {
  FormatList formats;
  formats.push_back(dcp_format());
  formats.push_back(torch_format());
  return formats;
}

}  // namespace fsdpctl

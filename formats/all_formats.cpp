#include "formats/all_formats.h"

#include "formats/dcp.h"
#include "formats/hdf5.h"
#include "formats/hf_dcp.h"
#include "formats/safetensors.h"
#include "formats/torch.h"

namespace fsdpctl {

FormatList all_formats() {
  FormatList formats;
  formats.push_back(dcp_format());
  formats.push_back(torch_format());
  formats.push_back(safetensors_format());
  formats.push_back(hf_dcp_format());
  formats.push_back(hdf5_format());
  return formats;
}

}  // namespace fsdpctl

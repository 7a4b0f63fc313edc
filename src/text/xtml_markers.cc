#include "text/xtml_markers.h"

#include "text/tokenizer.h"

namespace k3 {

Result<XtmlMarkers> XtmlMarkers::Find(const Tokenizer& tokenizer) {
  XtmlMarkers markers;
  K3_TRY(markers.open, tokenizer.SpecialId(kXtmlOpen));
  K3_TRY(markers.close, tokenizer.SpecialId(kXtmlClose));
  K3_TRY(markers.sep, tokenizer.SpecialId(kXtmlSep));
  K3_TRY(markers.end_of_message, tokenizer.SpecialId(kXtmlEndOfMessage));
  return markers;
}

}  // namespace k3

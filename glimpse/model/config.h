// Hyperparameters from checked metadata: every value has a range, and a key that would change the arithmetic in a way
// that is not built is refused by name. Any thread.
#pragma once

#include "glimpse/model/model.h"

namespace glimpse::model {

/// The architecture of the file. Throws UserError with the known names.
Architecture find_architecture(const GgufFile& file);

/// Everything but `vocabulary`, which is the size of the embedding.
Config read_config(const GgufFile& file, const Architecture& architecture);

}  // namespace glimpse::model

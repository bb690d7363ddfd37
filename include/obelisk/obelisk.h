/// obelisk/obelisk.h — all of the library: compile or open a Model, run it in a Context; many
/// models in a Server.
#pragma once

#include "obelisk/context.h"
#include "obelisk/error.h"
#include "obelisk/model.h"
#include "obelisk/port.h"
#include "obelisk/server.h"

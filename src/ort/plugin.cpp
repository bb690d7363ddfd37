// The two functions by which ONNX Runtime knows a plug-in. Part of each library that is one, not of
// the room's: what an archive holds is exported by none.
#include "ort/ort.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED obelisk::ort::Answer* CreateEpFactories(const char*, const obelisk::ort::ApiBase* base,
                                                 const obelisk::ort::Logger*,
                                                 obelisk::ort::FactoryFunctions** factories,
                                                 size_t most, size_t* count) {
  return obelisk::ort::create_factories(base, factories, most, count);
}

EXPORTED obelisk::ort::Answer* ReleaseEpFactory(obelisk::ort::FactoryFunctions* factory) {
  return obelisk::ort::release_factory(factory);
}

// Synchronisations and queries. CountedSlot counts their calls (driver.hpp).

#include "blocks/applies.hpp"
#include "driver/driver.hpp"

using namespace curb::shim;

CUresult cuCtxSynchronize() { return blocks::noted(driver().cuCtxSynchronize()); }
CUresult cuCtxSynchronize_v2(CUcontext context) { return blocks::noted(driver().cuCtxSynchronize_v2(context)); }
CUresult cuStreamSynchronize(CUstream stream) { return blocks::noted(driver().cuStreamSynchronize(stream)); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return blocks::noted(driver().cuStreamSynchronize_ptsz(stream)); }
CUresult cuStreamQuery(CUstream stream) { return blocks::noted(driver().cuStreamQuery(stream)); }
CUresult cuStreamQuery_ptsz(CUstream stream) { return blocks::noted(driver().cuStreamQuery_ptsz(stream)); }
CUresult cuEventSynchronize(CUevent event) { return blocks::noted(driver().cuEventSynchronize(event)); }
CUresult cuEventQuery(CUevent event) { return blocks::noted(driver().cuEventQuery(event)); }

// Synchronisations and queries. CountedSlot counts their calls (driver.hpp).

#include "driver/driver.hpp"

using namespace curb::shim;

CUresult cuCtxSynchronize() { return driver().cuCtxSynchronize(); }
CUresult cuCtxSynchronize_v2(CUcontext context) { return driver().cuCtxSynchronize_v2(context); }
CUresult cuStreamSynchronize(CUstream stream) { return driver().cuStreamSynchronize(stream); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return driver().cuStreamSynchronize_ptsz(stream); }
CUresult cuStreamQuery(CUstream stream) { return driver().cuStreamQuery(stream); }
CUresult cuStreamQuery_ptsz(CUstream stream) { return driver().cuStreamQuery_ptsz(stream); }
CUresult cuEventSynchronize(CUevent event) { return driver().cuEventSynchronize(event); }
CUresult cuEventQuery(CUevent event) { return driver().cuEventQuery(event); }

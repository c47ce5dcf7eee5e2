/*
 * What tests may ask of the simulated driver beyond CUDA's and NVML's public interface, and the environment it reads.
 * Exported by build/sim/libcuda.so.1; find it with dlsym or link with -lcuda from build/sim.
 *
 *   CURB_SIM_GPUS=N            devices of a new machine; default 1, at most 16
 *   CURB_SIM_MEMORY=SIZE       memory of each: bytes or KiB, MiB, GiB; default 80GiB
 *   CURB_SIM_STATE=FILE        processes that name the same file share one machine; unset: a machine of one's own
 *   CURB_SIM_LATENCY=off|h100  h100: calls take the times of the real card; default off
 *   CURB_SIM_FAULT=name:k:code[,...]
 *                              the k-th call (from 1) of export `name` in this process does nothing and returns `code`;
 *                              '*' counts the calls of all names together
 *   CURB_SIM_NVML=nopids       NVML lists no processes, as inside a container's own pid namespace
 *
 * A state file that is missing is made, with the devices and the memory that its maker's environment says.
 *
 * What it is not: kernels do nothing but succeed; work is complete as soon as it is submitted; modules hold no globals;
 * array contents and peer-to-peer limits are not kept; cuGetExportTable knows no tables, so real libcudart does not run
 * on it. Memory that one process exports is charged to that process alone and ends with it.
 *
 * From outside, build/bin/curb-sim-books FILE prints a shared machine's books as JSON.
 */
#ifndef CURB_SIM_H
#define CURB_SIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that this process holds on `device`, managed memory left out (NVML's figure); 0 for no such device. */
uint64_t curb_sim_held(int device);

/* Calls of the export `name` ("cuMemAlloc_v2") in this process so far, failed ones included; 0 for an unknown name. */
uint64_t curb_sim_calls(const char *name);

/* The machine that this process's simulated driver uses (a curb::sim::Machine *), for libnvidia-ml in the same process.
   Null before the first cuInit. Not for tests. */
void *curb_sim_machine(void);

#ifdef __cplusplus
}
#endif

#endif /* CURB_SIM_H */

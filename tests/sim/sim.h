/*
 * What tests may ask of the simulated driver beyond CUDA's and NVML's public interface, and the environment it reads.
 * Exported by build/sim/libcuda.so.1; find it with dlsym or link with -lcuda from build/sim.
 *
 *   CURB_SIM_GPUS=N            devices of a new machine; default 1, at most 16
 *   CURB_SIM_MEMORY=SIZE       memory of each: a number and KiB, MiB or GiB; default 80GiB
 *   CURB_SIM_STATE=FILE        processes that name the same file share one machine; unset: a machine of one's own
 *   CURB_SIM_LATENCY=off|h100  h100: calls take the times of the real card; default off
 *   CURB_SIM_FAULT=name:k:code[,...]
 *                              the k-th call (from 1) of export `name` in this process does nothing and returns `code`;
 *                              '*' counts the calls of all names together
 *   CURB_SIM_HANDLES=reuse|fresh
 *                              reuse, the default: as the driver does, the handle of a type that was freed last is the next
 *                              one's; fresh: no handle comes again, so that a stale one is always found out
 *   CURB_SIM_NVML=nopids|broken|late|absurd|crowd|hangs:init|hangs:processes|hangs:memory
 *                              nopids: NVML lists no processes, as in some containers; broken: it cannot be initialised;
 *                              late: not at the first attempt; absurd: every process holds 2^60 bytes; crowd: it counts
 *                              40 million processes; hangs:CALL: that call never returns
 *   CURB_SIM_MIG=1             each GPU is divided, and CUDA sees its one instance: cuDeviceGetUuid_v2 tells the
 *                              instance's UUID, cuDeviceGetUuid its GPU's; NVML finds the instance by "MIG-…", and of
 *                              the GPU, "GPU-…", it tells no process's memory
 *   CURB_SIM_PERSISTENCE=off   NVML says of every GPU that persistence mode is off
 *   CURB_SIM_MPS=1             NVML says of every process that it shares its GPU through MPS
 *   CUDA_VISIBLE_DEVICES, CUDA_MODULE_LOADING
 *                              as the driver heeds them; NVML does not
 *
 * A state file that is missing is made, with the devices and the memory that its maker's environment says. Settings
 * that are wrong, or that the machine of an existing state file does not have, are printed, and there is no device then.
 *
 * Images of modules, libraries too, say what they take, in lines that may be comments of a PTX text for a real driver:
 *
 *   // curb-sim-module code=4MiB global=64MiB once=138MiB
 *   // kernel small
 *   // kernel frame local=8192
 *   // kernel alloc malloc
 *   // kernel busy us=500 blocks=1
 *
 *   code     taken when the first function is got, or at the load under CUDA_MODULE_LOADING=EAGER
 *   global   a variable, found under any name, taken when the module is loaded into a context; of a library, when the
 *            variable or a function of it is first asked for there
 *   once     taken at the load, by the context: it stays when the module is unloaded, and the next one finds it there
 *   local    local memory of each thread, in bytes: a launch raises the context's stack to it
 *   malloc   the kernel allocates: its launch takes the context's heap
 *   us       the kernel runs for so many microseconds after what is before it in its stream. Calls that wait for it do:
 *            cuCtxSynchronize, cuStreamSynchronize, cuEventSynchronize, the end of its context, and cuMemFree, which waits
 *            for all work of the context that has the block, or of the device if none has; cuStreamQuery and cuEventQuery say that it is not ready. Copies do not wait, and
 *            as a node of a graph it takes no time
 *   blocks   its first so many parameters are pointers, and it has the blocks that they point into for itself while it
 *            runs. Another kernel that has one of them at the same time, on a stream that does not wait for the first, is
 *            an overlap: the memory was handed out again while the device still used it, or two streams race
 *
 * Any other image takes 2 MiB when it is loaded, and has a kernel of every name, which needs nothing.
 *
 * What it is not: kernels do nothing but succeed; work is complete as soon as it is submitted, if its kernel's line does
 * not say otherwise; array contents and peer-to-peer limits are not kept; cuGetExportTable knows no tables, so real
 * libcudart does not run on it. Memory that one process exports is charged to that process alone and ends with it.
 *
 * build/sim/11.4, 12.2 and 12.8 have the same driver as it was in these versions of CUDA: what came later is not there.
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

/* Of what it holds there, the bytes for one use, as curb-sim-books names it ("plain", "managed"); 0 for no such use. */
uint64_t curb_sim_held_for(int device, const char *use);

/* The most that this process has held at once on `device`, managed memory included; 0 for no such device. */
uint64_t curb_sim_high(int device);

/* How often a kernel had a block of `device` that another one still had, on this machine since it was made; 0 for no such
   device. */
uint64_t curb_sim_overlaps(int device);

/* Calls of the export `name` ("cuMemAlloc_v2") in this process so far, failed ones included; 0 for an unknown name. */
uint64_t curb_sim_calls(const char *name);

/* Plans a fault in the place of the one before: the `call`-th call from now on (from 1; 0: none, they are only counted) of
   the calling thread, or with `others` of all threads but this one, does nothing and returns `result`. */
void curb_sim_fail(uint64_t call, int result, int others);

/* The next so many calls of the export `name`, a string that stays, do nothing and return `result`, whoever makes them. */
void curb_sim_fail_next(const char *name, int result, int times);

/* The same, but they do what they are for before they return `result`: as calls of the driver do that report an error of
   earlier work. */
void curb_sim_report_next(const char *name, int result, int times);

/* The `call`-th call (from 1) of the export `name`, a string that stays, by any thread but this one is made only after so
   many milliseconds. */
void curb_sim_hold_up(const char *name, uint64_t call, unsigned milliseconds);

/* The next call of the export `name`, a string that stays, by any thread but this one has its effect at once and returns
   only when this is called with null. */
void curb_sim_hold_return(const char *name);

/* From now on every call returns `result`, as after a kernel that has read a wrong address, but for those that the driver
   answers then (a table in faults.cpp). A reset of the primary context frees its memory and ends nothing, as on an H200;
   0 ends it. */
void curb_sim_break(int result);

/* 1: calls are neither counted nor failed; 0: from here on they are again. */
void curb_sim_fail_pause(int pause);

/* The export that was failed so, null if none was yet; and how many calls were counted. */
const char *curb_sim_failed(uint64_t *calls);

/* Of libnvidia-ml.so.1: what this process is said to use of its devices from now on, in percent (0 at the start). */
void curb_sim_set_utilization(unsigned percent);
/* Of the same: its calls do not return, from now on or until it is set to 0. */
void curb_sim_set_nvml_hangs(int does);
/* Of the same: how often this process has asked for the processes of a device. */
unsigned curb_sim_process_lists(void);

/* The machine that this process's simulated driver uses (a curb::sim::Machine *), for libnvidia-ml in the same process.
   Null before the first cuInit. Not for tests. */
void *curb_sim_machine(void);

#ifdef __cplusplus
}
#endif

#endif /* CURB_SIM_H */

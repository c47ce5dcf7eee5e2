/*
 * The simulated driver's interface for tests, beyond those of CUDA and NVML, and the environment that it reads.
 * build/sim/libcuda.so.1 exports it: look it up with dlsym, or link with -lcuda from build/sim.
 *
 *   CURB_SIM_GPUS=N            devices of a new machine; default 1, at most 16
 *   CURB_SIM_MEMORY=SIZE       memory of each: a number and KiB, MiB or GiB; default 80GiB
 *   CURB_SIM_STATE=FILE        processes that name the same file share one machine; unset: each has its own
 *   CURB_SIM_MACHINE=NUMBER    a part of the UUIDs of its GPUs; default: a number made of FILE, or of the process
 *   CURB_SIM_HIGH=1            the machine records the most that all living processes have held at once
 *   CURB_SIM_SHARED=MODE       memory that others still have when its maker ends. uncounted: NVML counts it for no
 *                              process; without it, for the only one that has it, and for none of several (as the open
 *                              part of the driver has it); ends: it ends with its maker
 *   CURB_SIM_LATENCY=h100      calls take as long as on the real card, and copies between host and device as long as one
 *                              engine for each direction needs, which the processes of a machine share
 *   CURB_SIM_FAULT=name:k:code[,...]
 *                              the k-th call (from 1) of export `name` in this process does nothing and returns `code`;
 *                              '*' counts the calls of all names together
 *   CURB_SIM_FAULT_FILE=FILE   whenever FILE says name:k:code, the k-th call from then on (from 1) of that export of the
 *                              driver or of NVML, by any process with this setting, does nothing and returns `code`, and
 *                              FILE is gone
 *   CURB_SIM_CALLS=FILE        if FILE exists, each call of an export of the driver or of NVML adds the export's name, a line
 *   CURB_SIM_HANDLES=fresh     no handle is reused, so that a stale one is always detected; otherwise, as in the
 *                              driver, a new object gets the handle of its type that was freed last
 *   CURB_SIM_PROC=FOLDER       the /proc of the pid namespace whose pids NVML shows, for programs in containers: where the
 *                              host's is mounted; the calls of checkpoints know the caller alone by its own pid
 *   CURB_SIM_NVML=MODE         nopids: NVML lists no processes, as in some containers; nolist: it does not support such
 *                              lists, as on WSL2; broken: it cannot be initialised; late: the first attempt fails; absurd:
 *                              every process holds 2^60 bytes; crowd: it counts 40 million processes; hangs:init,
 *                              hangs:processes, hangs:memory: that call never returns
 *   CURB_SIM_MIG=1             each GPU is divided, and CUDA sees one instance of it: cuDeviceGetUuid_v2 returns the
 *                              UUID of the instance, cuDeviceGetUuid that of the GPU. NVML finds the instance by
 *                              "MIG-…"; for the GPU, "GPU-…", it returns no process's memory
 *   CURB_SIM_UNIFIED=FILE      the one GPU shares the host's memory: it is an integrated device, and NVML has no figures of
 *                              its memory, nor of what processes hold. FILE is the machine's /proc/meminfo: mount it there.
 *                              Its MemTotal is the memory of the device, of which allocations take what MemAvailable says.
 *                              cuMemGetInfo returns 256 MiB less, for the page cache. Host memory that programs allocate
 *                              is not in it
 *   CURB_SIM_SOFT_LIMIT=BYTES  the soft limit of every cgroup, in which all processes of the machine are
 *   CURB_SIM_PERSISTENCE=off   NVML reports persistence mode off for every GPU
 *   CURB_SIM_MPS=1             NVML reports every process as one that shares its GPU through MPS
 *   CUDA_VISIBLE_DEVICES, CUDA_MODULE_LOADING
 *                              as in the driver; NVML ignores them
 *
 * A missing state file is created, with the devices and the memory of that process's environment. The simulator prints
 * settings that are wrong, or that differ from the machine of an existing state file, and has no device then.
 *
 * Images of modules and libraries declare the memory that they take, in lines that may be comments of a PTX text for a
 * real driver:
 *
 *   // curb-sim-module code=4MiB global=64MiB once=138MiB
 *   // kernel small
 *   // kernel frame local=8192
 *   // kernel alloc malloc
 *   // kernel busy us=500 blocks=1
 *
 *   code     taken at the first look-up of a function, or at the load under CUDA_MODULE_LOADING=EAGER
 *   global   a variable, found under any name, taken when the module is loaded into a context; of a library, when the
 *            variable or a function of it is first asked for there
 *   once     taken at the load, by the context: it stays when the module is unloaded, and serves the next one
 *   local    local memory of each thread, in bytes: a launch raises the context's stack to it
 *   malloc   the kernel allocates: its launch takes the context's heap
 *   us       how many microseconds the kernel runs, after what is before it in its stream. cuCtxSynchronize,
 *            cuStreamSynchronize, cuEventSynchronize and the end of its context wait for it; cuMemFree waits for all work
 *            of the block's context, or of the device if the block has none. cuStreamQuery and cuEventQuery return
 *            CUDA_ERROR_NOT_READY. Copies do not wait, and as a node of a graph it takes no time
 *   blocks   how many of its parameters, from the first, are pointers. While it runs it has the blocks that they point
 *            into to itself. If another kernel, on a stream that does not wait for it, has one of them at the same
 *            time, that is an overlap: the memory was handed out again while in use, or two streams race
 *
 * Any other image takes 2 MiB when it is loaded, and has a kernel of every name, which needs nothing.
 *
 * The driver calls the functions of cuLaunchHostFunc, cuStreamAddCallback and host nodes on a thread of its own, one at a
 * time and after the work before them. Synchronisations, later kernels and a lock of the process wait for them.
 *
 * Limits: kernels do nothing; work is complete as soon as it is submitted, unless its kernel's line says otherwise, or it
 * is a function of the program; array contents and peer-to-peer limits are not kept; cuMemcpy3DBatchAsync is not
 * supported; cuGetExportTable knows no tables, so real libcudart does not run on it.
 * Memory that a process exports is charged to that process alone. Blocks, handles and what a pool has grown by at once stay
 * while another process has them. NVML counts what is left of pools for no process.
 *
 * build/sim/11.4, 12.2 and 12.8 are the same driver as it was in these versions of CUDA. build/bin/curb-sim-books FILE
 * prints a shared machine's books as JSON.
 */
#ifndef CURB_SIM_H
#define CURB_SIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* On `device`; 0 if there is no such device. */
/* Returns the bytes that this process holds, without managed memory: NVML's figure. */
uint64_t curb_sim_held(int device);
/* Returns the bytes held for one use, as curb-sim-books names it ("plain", "managed"); 0 if there is no such use. */
uint64_t curb_sim_held_for(int device, const char *use);
/* Returns the most that this process has held at once, with managed memory. */
uint64_t curb_sim_high(int device);
/* Returns the overlaps (see `blocks`) on this machine since it was made. */
uint64_t curb_sim_overlaps(int device);

/* Exports are named as in "cuMemAlloc_v2". The functions keep the pointer to `name`. */
/* Returns the calls of an export in this process so far, with those that failed; 0 for an unknown name. */
uint64_t curb_sim_calls(const char *name);
/* Plans a fault, which replaces the one before: the `call`-th call from now on (from 1; 0: only counts calls) by the
   calling thread, or with `others` by all other threads, does nothing and returns `result`. CURB_SIM_KILL: that call ends
   the process by SIGKILL. */
#define CURB_SIM_KILL (-9)
void curb_sim_fail(uint64_t call, int result, int others);
/* 1: stops counting and failing calls; 0: goes on. */
void curb_sim_fail_pause(int pause);
/* Returns the export that failed so; null if none has yet. Sets `calls` to the number of calls counted. */
const char *curb_sim_failed(uint64_t *calls);
/* The next `times` calls of an export, by any thread, do nothing and return `result`. */
void curb_sim_fail_next(const char *name, int result, int times);
/* The same, but the calls do their work before they return `result`, as those that report an error of earlier work. */
void curb_sim_report_next(const char *name, int result, int times);
/* Delays the `call`-th call (from 1) of an export, by any thread but this one. */
void curb_sim_hold_up(const char *name, uint64_t call, unsigned milliseconds);
/* The next call of an export, by any thread but this one, does its work and returns only when this is called with null. */
void curb_sim_hold_return(const char *name);
/* 1: a copy from or to pageable memory stops after its first 4 MiB until this is called with 0. It goes on in pieces, and
   fails with CUDA_ERROR_ILLEGAL_ADDRESS if the memory of one is gone by then. */
void curb_sim_hold_copies(int hold);
/* From now on every call returns `result`, as after a kernel that has read a wrong address, except those that the driver
   still answers (a table in faults.cpp). A reset of the primary context frees its memory but does not end this (measured
   on an H200); 0 ends it. */
void curb_sim_break(int result);

/* Of libnvidia-ml.so.1. */
/* Sets this process's utilization of its devices, in percent; 0 at the start. */
void curb_sim_set_utilization(unsigned percent);
/* 1: NVML's calls do not return until this is called with 0. */
void curb_sim_set_nvml_hangs(int does);
/* Returns how often this process has listed the processes of a device. */
unsigned curb_sim_process_lists(void);

/* Returns the machine that this process's simulated driver uses (a curb::sim::Machine *), for libnvidia-ml in the same
   process. Null before the first cuInit. Not for tests. */
void *curb_sim_machine(void);

#ifdef __cplusplus
}
#endif

#endif /* CURB_SIM_H */

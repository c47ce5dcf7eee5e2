-- Schedules `sbatch --gpu-mem=6GiB` by GPU memory: JobSubmitPlugins=lua, and this file beside slurm.conf.
--
-- A job that asks for GPU memory and for no GPU gets enough shards for it. If no GPU has as much memory or as many
-- shards, the submission fails; Slurm alone would let such a job wait for ever.

-- The memory of each GPU of the cluster, or of the largest. A shard is the same part of each.
local GPU_MEMORY_MIB = 16 * 1024
local SHARDS_PER_GPU = 4
-- Slurm 22.05 writes gres:shard:2. From 23.02 on it is gres/shard:2 by its documentation; tried with 22.05 alone.
local SHARDS = "gres:shard:%d"

local OPTION = "_SLURM_SPANK_OPTION_curb_gpu_mem="
local MIB = { B = 2 ^ -20, K = 2 ^ -10, M = 1, G = 2 ^ 10, T = 2 ^ 20 }

-- Returns the value of --gpu-mem; nil if the job does not set it. Of several, Slurm passes on the last.
local function gpu_mem(job)
    for _, text in pairs(job.spank_job_env or {}) do
        if text:sub(1, #OPTION) == OPTION then
            return text:sub(#OPTION + 1)
        end
    end
end

-- Returns the MiB of "6GiB", "1.5 GiB", "8G", "25%", as curb reads sizes; nil for other texts, which the plugin refuses.
local function mib_of(size)
    local number, unit = size:match("^%s*(%d+%.?%d*)%s*(%S+)%s*$")
    if not number then
        return nil
    elseif unit == "%" then
        return GPU_MEMORY_MIB * tonumber(number) / 100
    end
    local letter = unit:upper():match("^([KMGT])I?B?$") or unit:upper():match("^B$")
    return letter and tonumber(number) * MIB[letter]
end

-- Calls visit(name, count) for each of the job's requests: "gres:shard:fake:2", "gres/gpu:1" and "gpu" are shard 2, gpu 1
-- and gpu 1.
local function each_request(job, visit)
    for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
        for request in (job[field] or ""):gmatch("[^,]+") do
            local name = request:gsub("^gres[:/]", ""):match("^[^:=]+")
            local digits, unit = request:match("[:=](%d+)(%a?)$")
            visit(name, (tonumber(digits) or 1) * (unit and unit ~= "" and 1024 or 1))
        end
    end
end

function slurm_job_submit(job, partition, uid)
    local names_gpus, refused = false, nil
    each_request(job, function(name, count)
        names_gpus = names_gpus or name == "gpu" or name == "shard"
        if name == "shard" and count > SHARDS_PER_GPU then
            refused = count
        end
    end)
    if refused then
        slurm.log_user("curb: a GPU has %d shards, so no node can run a job with shard:%d", SHARDS_PER_GPU, refused)
        return slurm.ERROR
    end
    local size = gpu_mem(job)
    local mib = size and mib_of(size)
    if not mib then
        return slurm.SUCCESS
    end
    if mib > GPU_MEMORY_MIB then
        slurm.log_user("curb: --gpu-mem=%s is more than a GPU has, %d GiB", size, math.floor(GPU_MEMORY_MIB / 1024))
        return slurm.ERROR
    end
    if names_gpus then
        return slurm.SUCCESS
    end
    local shards = math.max(1, math.ceil(mib * SHARDS_PER_GPU / GPU_MEMORY_MIB))
    local others = job.tres_per_node
    job.tres_per_node = (others and others ~= "" and others .. "," or "") .. SHARDS:format(shards)
    slurm.log_user("curb: --gpu-mem=%s is scheduled as %d of the %d shards of a GPU", size, shards, SHARDS_PER_GPU)
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partition, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS

-- Times each transaction of a load of sysbench. The lab sets these names in a line before this text:
-- LOAD is the load; TIMES is the file for the times; a factor of two has PER_OCTAVE buckets, of BUCKETS in all.
--
-- The file has a row for each thread: the sum of all times in microseconds, and the count of each bucket, as
-- numbers of type double. Each thread maps the file and changes its own row alone. All counts begin at zero
-- and only grow, so the lab can read the file at any moment.

require(LOAD)

local ffi = require("ffi")
ffi.cdef [[
   typedef struct { long seconds, nanoseconds; } whet_lab_time;
   int clock_gettime(int clock, whet_lab_time *now);
   int open(const char *path, int flags, ...);
   int close(int file);
   void *mmap(void *address, size_t length, int protection, int flags, int file, long offset);
]]
local MONOTONIC, READ_WRITE, MAY_READ_AND_WRITE, SHARED = 1, 2, 3, 1
local FAILED = ffi.cast("void *", -1)
local ROW = BUCKETS + 1

local clock = ffi.new("whet_lab_time")
local function microseconds()
   ffi.C.clock_gettime(MONOTONIC, clock)
   return tonumber(clock.seconds) * 1e6 + tonumber(clock.nanoseconds) / 1e3
end

local function row_of(thread)
   local file = ffi.C.open(TIMES, READ_WRITE)
   assert(file >= 0, "cannot open the file for the times")
   local length = ROW * ffi.sizeof("double") * sysbench.opt.threads
   local map = ffi.C.mmap(nil, length, MAY_READ_AND_WRITE, SHARED, file, 0)
   assert(map ~= FAILED, "cannot map the file for the times")
   ffi.C.close(file)
   return ffi.cast("double *", map) + thread * ROW
end

local row
local prepare = thread_init
function thread_init(thread)
   row = row_of(thread)
   if prepare then prepare(thread) end
end

local began
local transaction = event
function event(thread)
   -- sysbench calls this again after an error of the data, such as a deadlock. The client has waited since
   -- the first call.
   began = began or microseconds()
   local ends_load = transaction(thread)
   local time = microseconds() - began
   began = nil
   local bucket = math.floor(math.log(math.max(time, 1)) / math.log(2) * PER_OCTAVE)
   bucket = math.min(bucket, BUCKETS - 1)
   row[0] = row[0] + time
   row[1 + bucket] = row[1 + bucket] + 1
   return ends_load
end

; Running a plan: alone, or with a gang of threads that share its launches (fork and join once a run).
; In: a context block (one call) and, for more than one thread, the gang block (one process).
; Out: the kernels of every step have run, step after step; results do not depend on who ran what.
; Invariant: all mutable state lies in the two blocks; with one thread no lock and no atomic is touched.
; A worker joins at whatever step is open when it wakes, so nobody ever waits for a sleeping thread.

; Context, i64 words: 0 slots, 1 bases, 2 patches, 3 patch count, 4 launches, 5 steps, 6 step count,
; 7 scratch, 8 scratch bytes of a thread, 9 counters, 10 most launches in a step, 11 threads,
; 12 gang (0 = alone), 13 time stamps (0 = none).
; Patch: destination slot, base index, offset slot. Launch: kernel, first slot, task slot, flags.
; steps[i] is the first launch of step i (of a segment: its steps may be a part of the plan's);
; steps[step count] is the launch after the last.
%context = type { ptr, ptr, ptr, i64, ptr, ptr, i64, ptr, i64, ptr, i64, i64, ptr, ptr }
%patch = type { i64, i64, i64 }
%launch = type { ptr, i64, i64, i64 }
%line = type { i64, [7 x i64] }

; Gang, 64-byte lines: 0 state; 1 job (futex of idle workers); 2 sleepers at the barrier; 3 idle
; sleepers; 4 the open job: context, first phase, then syscall, futex number, spin ticks, stop.
; state = phase << 32 | limit << 20 | members << 10 | arrived; members = 0 means that no job is open.
; The phase only ever grows, so a thread that looks late can not mistake a new step for its old one.
%gang = type { %line, %line, %line, %line, ptr, i64, ptr, i64, i64, i64 }

define hidden i64 @fissile_cycles() nounwind "no-builtins" {
  %now = call i64 @cycles()
  ret i64 %now
}

define internal void @patch_slots(ptr %context) nounwind "no-builtins" {
entry:
  %slots = load ptr, ptr %context, align 8
  %bases.p = getelementptr %context, ptr %context, i64 0, i32 1
  %bases = load ptr, ptr %bases.p, align 8
  %patches.p = getelementptr %context, ptr %context, i64 0, i32 2
  %patches = load ptr, ptr %patches.p, align 8
  %count.p = getelementptr %context, ptr %context, i64 0, i32 3
  %count = load i64, ptr %count.p, align 8
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %to.p = getelementptr %patch, ptr %patches, i64 %i, i32 0
  %to = load i64, ptr %to.p, align 8
  %base.p = getelementptr %patch, ptr %patches, i64 %i, i32 1
  %base.i = load i64, ptr %base.p, align 8
  %offset.p = getelementptr %patch, ptr %patches, i64 %i, i32 2
  %offset.i = load i64, ptr %offset.p, align 8
  %base.a = getelementptr i64, ptr %bases, i64 %base.i
  %base = load i64, ptr %base.a, align 8
  %offset.a = getelementptr i64, ptr %slots, i64 %offset.i
  %offset = load i64, ptr %offset.a, align 8
  %address = add i64 %base, %offset
  %to.a = getelementptr i64, ptr %slots, i64 %to
  store i64 %address, ptr %to.a, align 8
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}

; stamps[2i] and stamps[2i + 1] are the cycle counter before and after launch i, on thread 0.
define internal void @stamp(ptr %context, i64 %thread, i64 %index) nounwind "no-builtins" {
entry:
  %stamps.p = getelementptr %context, ptr %context, i64 0, i32 13
  %stamps = load ptr, ptr %stamps.p, align 8
  %none = icmp eq ptr %stamps, null
  %other = icmp ne i64 %thread, 0
  %skip = or i1 %none, %other
  br i1 %skip, label %done, label %write
write:
  %now = call i64 @cycles()
  %to = getelementptr i64, ptr %stamps, i64 %index
  store i64 %now, ptr %to, align 8
  br label %done
done:
  ret void
}

define internal void @run_alone(ptr %context) nounwind "no-builtins" {
entry:
  %slots = load ptr, ptr %context, align 8
  %launches.p = getelementptr %context, ptr %context, i64 0, i32 4
  %launches = load ptr, ptr %launches.p, align 8
  %steps.p = getelementptr %context, ptr %context, i64 0, i32 5
  %steps = load ptr, ptr %steps.p, align 8
  %count.p = getelementptr %context, ptr %context, i64 0, i32 6
  %count = load i64, ptr %count.p, align 8
  %begin = load i64, ptr %steps, align 8
  %end.p = getelementptr i64, ptr %steps, i64 %count
  %end = load i64, ptr %end.p, align 8
  %scratch.p = getelementptr %context, ptr %context, i64 0, i32 7
  %scratch = load ptr, ptr %scratch.p, align 8
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %after ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %twice = shl i64 %i, 1
  call void @stamp(ptr %context, i64 0, i64 %twice)
  %kernel.p = getelementptr %launch, ptr %launches, i64 %i, i32 0
  %kernel = load ptr, ptr %kernel.p, align 8
  %first.p = getelementptr %launch, ptr %launches, i64 %i, i32 1
  %first = load i64, ptr %first.p, align 8
  %slot.p = getelementptr %launch, ptr %launches, i64 %i, i32 2
  %slot = load i64, ptr %slot.p, align 8
  %args = getelementptr i64, ptr %slots, i64 %first
  %tasks.p = getelementptr i64, ptr %slots, i64 %slot
  %tasks = load i64, ptr %tasks.p, align 8
  %some = icmp sgt i64 %tasks, 0
  br i1 %some, label %call, label %after
call:
  call void %kernel(ptr %args, i64 0, i64 %tasks, ptr %scratch)
  br label %after
after:
  %odd = or i64 %twice, 1
  call void @stamp(ptr %context, i64 0, i64 %odd)
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}

; A step's counters are cleared one step ahead, in the half that nobody uses now.
define internal void @clear_counters(ptr %context, i64 %half) nounwind "no-builtins" {
entry:
  %counters.p = getelementptr %context, ptr %context, i64 0, i32 9
  %counters = load ptr, ptr %counters.p, align 8
  %width.p = getelementptr %context, ptr %context, i64 0, i32 10
  %width = load i64, ptr %width.p, align 8
  %threads.p = getelementptr %context, ptr %context, i64 0, i32 11
  %threads = load i64, ptr %threads.p, align 8
  %lines = mul i64 %width, %threads
  %from = mul i64 %lines, %half
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %lines
  br i1 %more, label %body, label %done
body:
  %at = add i64 %from, %i
  %line = getelementptr %line, ptr %counters, i64 %at
  store atomic i64 0, ptr %line monotonic, align 8
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}

; Claim and run ranges of the share [low, high) until it is empty.
define internal void @run_share(ptr %kernel, ptr %args, i64 %low, i64 %high, i64 %chunk,
                                ptr %counter, ptr %scratch) nounwind "no-builtins" {
entry:
  br label %look
look:
  %taken = load atomic i64, ptr %counter monotonic, align 8
  %next = add i64 %low, %taken
  %empty = icmp sge i64 %next, %high
  br i1 %empty, label %done, label %claim
claim:
  %old = atomicrmw add ptr %counter, i64 %chunk monotonic, align 8
  %begin = add i64 %low, %old
  %lost = icmp sge i64 %begin, %high
  br i1 %lost, label %done, label %run
run:
  %stop = add i64 %begin, %chunk
  %past = icmp sgt i64 %stop, %high
  %end = select i1 %past, i64 %high, i64 %stop
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  br label %look
done:
  ret void
}

; One launch as seen by one thread: its own contiguous share first, then the others' in turn.
define internal void @run_launch(ptr %context, ptr %launch, ptr %counters, i64 %thread)
    nounwind "no-builtins" {
entry:
  %slots = load ptr, ptr %context, align 8
  %threads.p = getelementptr %context, ptr %context, i64 0, i32 11
  %threads = load i64, ptr %threads.p, align 8
  %base.p = getelementptr %context, ptr %context, i64 0, i32 7
  %base = load ptr, ptr %base.p, align 8
  %stride.p = getelementptr %context, ptr %context, i64 0, i32 8
  %stride = load i64, ptr %stride.p, align 8
  %own = mul i64 %stride, %thread
  %scratch = getelementptr i8, ptr %base, i64 %own
  %kernel = load ptr, ptr %launch, align 8
  %first.p = getelementptr %launch, ptr %launch, i64 0, i32 1
  %first = load i64, ptr %first.p, align 8
  %slot.p = getelementptr %launch, ptr %launch, i64 0, i32 2
  %slot = load i64, ptr %slot.p, align 8
  %args = getelementptr i64, ptr %slots, i64 %first
  %tasks.p = getelementptr i64, ptr %slots, i64 %slot
  %tasks = load i64, ptr %tasks.p, align 8
  %t0 = add i64 %tasks, %threads
  %t1 = sub i64 %t0, 1
  %share = sdiv i64 %t1, %threads
  %s7 = add i64 %share, 7
  %chunk = lshr i64 %s7, 3
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %threads
  br i1 %more, label %body, label %done
body:
  %sum = add i64 %thread, %k
  %over = icmp sge i64 %sum, %threads
  %less = sub i64 %sum, %threads
  %owner = select i1 %over, i64 %less, i64 %sum
  %low = mul i64 %owner, %share
  %high0 = add i64 %low, %share
  %past = icmp sgt i64 %high0, %tasks
  %high = select i1 %past, i64 %tasks, i64 %high0
  %some = icmp slt i64 %low, %high
  br i1 %some, label %take, label %next
take:
  %counter = getelementptr %line, ptr %counters, i64 %owner
  call void @run_share(ptr %kernel, ptr %args, i64 %low, i64 %high, i64 %chunk,
                       ptr %counter, ptr %scratch)
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %loop
done:
  ret void
}

define internal void @run_step(ptr %context, i64 %thread, i64 %step) nounwind "no-builtins" {
entry:
  %half = and i64 %step, 1
  %leads = icmp eq i64 %thread, 0
  br i1 %leads, label %clear, label %start
clear:
  %other = xor i64 %half, 1
  call void @clear_counters(ptr %context, i64 %other)
  br label %start
start:
  %launches.p = getelementptr %context, ptr %context, i64 0, i32 4
  %launches = load ptr, ptr %launches.p, align 8
  %steps.p = getelementptr %context, ptr %context, i64 0, i32 5
  %steps = load ptr, ptr %steps.p, align 8
  %counters.p = getelementptr %context, ptr %context, i64 0, i32 9
  %counters = load ptr, ptr %counters.p, align 8
  %width.p = getelementptr %context, ptr %context, i64 0, i32 10
  %width = load i64, ptr %width.p, align 8
  %threads.p = getelementptr %context, ptr %context, i64 0, i32 11
  %threads = load i64, ptr %threads.p, align 8
  %first.p = getelementptr i64, ptr %steps, i64 %step
  %first = load i64, ptr %first.p, align 8
  %end.p = getelementptr i64, ptr %first.p, i64 1
  %end = load i64, ptr %end.p, align 8
  %before = mul i64 %half, %width
  br label %loop
loop:
  %i = phi i64 [ %first, %start ], [ %i.next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %twice = shl i64 %i, 1
  call void @stamp(ptr %context, i64 %thread, i64 %twice)
  %position = sub i64 %i, %first
  %row = add i64 %before, %position
  %at = mul i64 %row, %threads
  %own = getelementptr %line, ptr %counters, i64 %at
  %launch = getelementptr %launch, ptr %launches, i64 %i
  call void @run_launch(ptr %context, ptr %launch, ptr %own, i64 %thread)
  %odd = or i64 %twice, 1
  call void @stamp(ptr %context, i64 %thread, i64 %odd)
  %i.next = add i64 %i, 1
  br label %loop
done:
  ret void
}

; operation: 128 wait, 129 wake (private futexes).
define internal void @futex(ptr %gang, ptr %word, i64 %operation, i64 %value)
    noinline nounwind "no-builtins" {
  %call.p = getelementptr %gang, ptr %gang, i64 0, i32 6
  %call = load ptr, ptr %call.p, align 8
  %number.p = getelementptr %gang, ptr %gang, i64 0, i32 7
  %number = load i64, ptr %number.p, align 8
  %r = call i64 (i64, ...) %call(i64 %number, ptr %word, i64 %operation, i64 %value,
                                 ptr null, ptr null, i64 0)
  ret void
}

; The order of "count me as asleep" and "look at the word" in the sleeper, and of "change the word"
; and "is anybody asleep" in the waker, is what makes a lost wake-up impossible: all four are seq_cst.
define internal void @sleep(ptr %gang, ptr %word, i32 %seen, ptr %sleepers) nounwind "no-builtins" {
  %up = atomicrmw add ptr %sleepers, i64 1 seq_cst, align 8
  %value = zext i32 %seen to i64
  call void @futex(ptr %gang, ptr %word, i64 128, i64 %value)
  %down = atomicrmw sub ptr %sleepers, i64 1 seq_cst, align 8
  ret void
}

define internal void @wake(ptr %gang, ptr %word, i64 %count, ptr %sleepers) nounwind "no-builtins" {
entry:
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %some = icmp sgt i64 %asleep, 0
  br i1 %some, label %call, label %done
call:
  call void @futex(ptr %gang, ptr %word, i64 129, i64 %count)
  br label %done
done:
  ret void
}

; Spin for the calibrated time, then sleep, until the phase has moved on.
define internal void @await(ptr %gang, i32 %phase) nounwind "no-builtins" {
entry:
  %ticks.p = getelementptr %gang, ptr %gang, i64 0, i32 8
  %ticks = load i64, ptr %ticks.p, align 8
  %sleepers = getelementptr %gang, ptr %gang, i64 0, i32 2
  %word = getelementptr i8, ptr %gang, i64 4
  %start = call i64 @cycles()
  br label %spin
spin:
  %state = load atomic i64, ptr %gang acquire, align 8
  %high = lshr i64 %state, 32
  %now = trunc i64 %high to i32
  %same = icmp eq i32 %now, %phase
  br i1 %same, label %pause, label %done
pause:
  call void @relax()
  %at = call i64 @cycles()
  %spent = sub i64 %at, %start
  %tired = icmp ugt i64 %spent, %ticks
  br i1 %tired, label %rest, label %spin
rest:
  call void @sleep(ptr %gang, ptr %word, i32 %phase, ptr %sleepers)
  br label %spin
done:
  ret void
}

; The barrier at the end of a step; the last thread of the last step closes the job.
define internal void @arrive(ptr %gang, i32 %phase, i1 %last) nounwind "no-builtins" {
entry:
  %old0 = load atomic i64, ptr %gang acquire, align 8
  %after = add i32 %phase, 1
  %after.w = zext i32 %after to i64
  %after.s = shl i64 %after.w, 32
  br label %try
try:
  %old = phi i64 [ %old0, %entry ], [ %seen, %try ]
  %arrived0 = and i64 %old, 1023
  %arrived = add i64 %arrived0, 1
  %members0 = lshr i64 %old, 10
  %members = and i64 %members0, 1023
  %complete = icmp eq i64 %arrived, %members
  %kept = and i64 %old, 4294966272
  %open = or i64 %after.s, %kept
  %moved = select i1 %last, i64 %after.s, i64 %open
  %counted = add i64 %old, 1
  %new = select i1 %complete, i64 %moved, i64 %counted
  %pair = cmpxchg ptr %gang, i64 %old, i64 %new seq_cst seq_cst, align 8
  %seen = extractvalue { i64, i1 } %pair, 0
  %done = extractvalue { i64, i1 } %pair, 1
  br i1 %done, label %in, label %try
in:
  br i1 %complete, label %release, label %wait
release:
  %sleepers = getelementptr %gang, ptr %gang, i64 0, i32 2
  %word = getelementptr i8, ptr %gang, i64 4
  call void @wake(ptr %gang, ptr %word, i64 2147483647, ptr %sleepers)
  ret void
wait:
  call void @await(ptr %gang, i32 %phase)
  ret void
}

; After the last arrival the context belongs to the caller again: it is not read any more.
define internal void @run_steps(ptr %context, ptr %gang, i64 %thread, i64 %from, i32 %phase0)
    nounwind "no-builtins" {
entry:
  %count.p = getelementptr %context, ptr %context, i64 0, i32 6
  %count = load i64, ptr %count.p, align 8
  br label %loop
loop:
  %step = phi i64 [ %from, %entry ], [ %step.next, %loop ]
  %phase = phi i32 [ %phase0, %entry ], [ %phase.next, %loop ]
  call void @run_step(ptr %context, i64 %thread, i64 %step)
  %step.next = add i64 %step, 1
  %phase.next = add i32 %phase, 1
  %last = icmp eq i64 %step.next, %count
  call void @arrive(ptr %gang, i32 %phase, i1 %last)
  br i1 %last, label %done, label %loop
done:
  ret void
}

; Only one job is open at a time: the caller holds the gang.
define internal void @lead(ptr %context, ptr %gang) nounwind "no-builtins" {
  call void @clear_counters(ptr %context, i64 0)
  %threads.p = getelementptr %context, ptr %context, i64 0, i32 11
  %threads = load i64, ptr %threads.p, align 8
  %state = load atomic i64, ptr %gang acquire, align 8
  %high = lshr i64 %state, 32
  %old = trunc i64 %high to i32
  %phase = add i32 %old, 1
  %phase.w = zext i32 %phase to i64
  %context.p = getelementptr %gang, ptr %gang, i64 0, i32 4
  store ptr %context, ptr %context.p, align 8
  %base.p = getelementptr %gang, ptr %gang, i64 0, i32 5
  store i64 %phase.w, ptr %base.p, align 8
  %phase.s = shl i64 %phase.w, 32
  %limit = shl i64 %threads, 20
  %open0 = or i64 %phase.s, %limit
  %open = or i64 %open0, 1024
  store atomic i64 %open, ptr %gang seq_cst, align 8
  %job = getelementptr %gang, ptr %gang, i64 0, i32 1
  %job.old = atomicrmw add ptr %job, i32 1 seq_cst, align 4
  %idle = getelementptr %gang, ptr %gang, i64 0, i32 3
  %helpers = sub i64 %threads, 1
  call void @wake(ptr %gang, ptr %job, i64 %helpers, ptr %idle)
  call void @run_steps(ptr %context, ptr %gang, i64 0, i64 0, i32 %phase)
  ret void
}

define hidden void @fissile_run(ptr %context) nounwind "no-builtins" {
entry:
  %float = call i32 @float_default()
  call void @patch_slots(ptr %context)
  %count.p = getelementptr %context, ptr %context, i64 0, i32 6
  %count = load i64, ptr %count.p, align 8
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %some
some:
  %gang.p = getelementptr %context, ptr %context, i64 0, i32 12
  %gang = load ptr, ptr %gang.p, align 8
  %solo = icmp eq ptr %gang, null
  br i1 %solo, label %alone, label %together
alone:
  call void @run_alone(ptr %context)
  br label %done
together:
  call void @lead(ptr %context, ptr %gang)
  br label %done
done:
  call void @float_restore(i32 %float)
  ret void
}

; The job word is read before the state, so a job opened in between makes the futex return at once.
define hidden void @fissile_worker(ptr %gang) nounwind "no-builtins" {
entry:
  %float = call i32 @float_default()
  %job.p = getelementptr %gang, ptr %gang, i64 0, i32 1
  %idle = getelementptr %gang, ptr %gang, i64 0, i32 3
  %context.p = getelementptr %gang, ptr %gang, i64 0, i32 4
  %base.p = getelementptr %gang, ptr %gang, i64 0, i32 5
  %stop.p = getelementptr %gang, ptr %gang, i64 0, i32 9
  br label %look
look:
  %job = load atomic i32, ptr %job.p seq_cst, align 4
  %stop = load atomic i64, ptr %stop.p seq_cst, align 8
  %leave = icmp ne i64 %stop, 0
  br i1 %leave, label %done, label %state
state:
  %old = load atomic i64, ptr %gang seq_cst, align 8
  %members0 = lshr i64 %old, 10
  %members = and i64 %members0, 1023
  %limit0 = lshr i64 %old, 20
  %limit = and i64 %limit0, 4095
  %open = icmp ne i64 %members, 0
  %room = icmp ult i64 %members, %limit
  %wanted = and i1 %open, %room
  br i1 %wanted, label %join, label %rest
join:
  %new = add i64 %old, 1024
  %pair = cmpxchg ptr %gang, i64 %old, i64 %new seq_cst seq_cst, align 8
  %joined = extractvalue { i64, i1 } %pair, 1
  br i1 %joined, label %work, label %look
work:
  %context = load ptr, ptr %context.p, align 8
  %base.w = load i64, ptr %base.p, align 8
  %base = trunc i64 %base.w to i32
  %high = lshr i64 %old, 32
  %phase = trunc i64 %high to i32
  %step32 = sub i32 %phase, %base
  %step = zext i32 %step32 to i64
  call void @run_steps(ptr %context, ptr %gang, i64 %members, i64 %step, i32 %phase)
  br label %look
rest:
  call void @sleep(ptr %gang, ptr %job.p, i32 %job, ptr %idle)
  br label %look
done:
  call void @float_restore(i32 %float)
  ret void
}

; All workers return to their caller; the gang must be idle.
define hidden void @fissile_stop(ptr %gang) nounwind "no-builtins" {
  %stop.p = getelementptr %gang, ptr %gang, i64 0, i32 9
  store atomic i64 1, ptr %stop.p seq_cst, align 8
  %job = getelementptr %gang, ptr %gang, i64 0, i32 1
  %old = atomicrmw add ptr %job, i32 1 seq_cst, align 4
  %idle = getelementptr %gang, ptr %gang, i64 0, i32 3
  call void @wake(ptr %gang, ptr %job, i64 2147483647, ptr %idle)
  ret void
}
